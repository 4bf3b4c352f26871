"""A model that is code: `tests.server.eager_code:make`."""


def make():
    def model(x):
        # A loop over values: no graph holds it.
        return {"sum": [float(sum(row)) for row in x.tolist()], "double": 2 * x}

    return model
