"""The public Python API, re-exported by `import fairlead`. Names that `fairlead.__all__` lacks are private."""
