"""Logic actions: webhooks that an experience's triggers hold."""
