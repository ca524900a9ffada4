"""The configuration: the sections model, data, training and decoding; presets; YAML and --set."""
