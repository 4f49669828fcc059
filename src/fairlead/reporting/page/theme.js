// Light or dark: what the address asks for, else what the system prefers; the button switches.
function startTheme(onChange) {
  const wanted = new URLSearchParams(location.search).get("theme"), root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = wanted === "dark" || wanted === "light" ? wanted : null;
  const apply = () => { root.dataset.theme = chosen || (system.matches ? "dark" : "light"); };
  apply();
  onChange();
  system.addEventListener("change", () => { apply(); onChange(); });
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    apply();
    onChange();
  });
}
