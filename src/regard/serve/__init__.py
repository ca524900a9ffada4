"""An HTTP service for trained models, with a web page: `regard serve`."""
