class Named(type):
    """Whatever is asked of `Nothing` itself is nothing, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Nothing(metaclass=Named):
    """Whatever is asked for."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
