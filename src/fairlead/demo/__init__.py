"""The demo of `fairlead demo`: a dozen small jobs on a local cluster, and a narration of what happens to them."""
