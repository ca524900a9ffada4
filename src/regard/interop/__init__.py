"""Import models from other toolkits and export models to them; verify each conversion."""
