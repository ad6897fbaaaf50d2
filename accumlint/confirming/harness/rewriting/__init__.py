"""The rewriting of a user's source, so that it runs with stubs."""
