"""Language models: references and loading, chat templates, packed forward passes, caches and the tree step."""
