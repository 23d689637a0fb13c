"""Action nodes as commands of SpiffWorkflow's connector proxy: ``flowactions/webhook`` and ``flowactions/chat_message``.

Where the proxy makes its Flask app:

    import connector_flowactions
    stop = connector_flowactions.start(app.config)  # call stop() before the process ends
"""

from connector_flowactions.sender import start

__all__ = ["start"]
