"""YAML files of users: schedulers and clusters. Here, in the registry and in the command line, names become objects."""
