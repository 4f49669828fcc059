// A page without charts of its own.
startTheme(() => {});
document.body.dataset.ready = "true";
