"""The operator pages: server-rendered HTML below ``/integrations/webhooks``, readable without JavaScript."""
