"""Deliveries as their organization and operators see them: filters, searches, one with all that is known, and the JSON routes."""
