"""Parts of the reference that are generated from the code, one module for each kind of source."""
