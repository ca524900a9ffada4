"""An HTTP service for trained models, with a web page: `regard serve`.

The names in this package, from the network to the model:

- exchange: an HTTP request and its response, as the gateway sees them (exchange.py).
- request: the body of an HTTP request, parsed and validated (a `msgspec.Struct`, endpoint.py).
- call: what a handler needs in addition to the request: models, settings and headers (endpoint.py).
- plan: the tokenised inputs of a request with their decoding options (`DecodingPlan`). Each of its
  decoding requests (`decoding.requests.Request`) is one sequence for the model.
- job: the work in the scheduler's queue that one handler waits for: a plan, or a function to call
  with items (jobs.py). It is not the `Job` of decoding/requests.py, which is the input of a search.
- lane: the waiting and running decoding requests of one model (jobs.py).
"""
