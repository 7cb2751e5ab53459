"""`make demo` and `make demo-chaos`: the application under real load, and the table at the end."""
