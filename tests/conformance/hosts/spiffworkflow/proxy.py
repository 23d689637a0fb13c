"""Action nodes behind a connector proxy, over HTTP: ``python -m tests.conformance.hosts.spiffworkflow.proxy FOLDER``.

The proxy finds commands and calls them as the connector proxy protocol of SpiffWorkflow's web product says; the product's own proxy
is in no package registry. A process runs with a delegate that calls the proxy as the product's backend does: with the ids of its
task and run, or, as older backends, without. It is restored from its serialization and run again each time. Prints, as JSON, the
catalog, and the event ids in the outbox: mode → node id → one of each row.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import threading
import typing
from pathlib import Path
from typing import Any

import connector_flowactions
import httpx
from flask import Flask, Response, current_app, request
from processes import serializer
from SpiffWorkflow.bpmn.script_engine import PythonScriptEngine, TaskDataEnvironment
from SpiffWorkflow.task import Task
from werkzeug.serving import make_server

from tests.conformance.hosts.small_host import WEBHOOK, SmallHost, outbox
from tests.conformance.hosts.spiffworkflow.small import workflow_in

MODES = ("ids of the backend", "no ids", "no ids, but a visit")


def commands() -> dict[str, type]:
    """Find the classes in the modules of each ``connector_…`` package's ``commands``, which are run anew."""
    found = {}
    for package in [each.name for each in pkgutil.iter_modules() if each.name.startswith("connector_")]:
        importlib.import_module(package)
        for each in pkgutil.iter_modules(importlib.import_module(f"{package}.commands").__path__):
            spec = each.module_finder.find_spec(each.name)  # type: ignore[call-arg]
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for name, member in inspect.getmembers(module, inspect.isclass):
                if member.__module__ == each.name:
                    found[f"{package.removeprefix('connector_')}/{name}"] = member
    return found


def described(name: str, command: type) -> dict[str, Any]:
    """Describe a command by the signature of its ``__init__``."""
    fields = []
    signature = inspect.signature(command.__init__)  # type: ignore[misc]
    for each in signature.parameters.values():
        if each.name in {"self", "kwargs"}:
            continue
        kinds = set(typing.get_args(each.annotation)) or {each.annotation}
        is_required = each.default is each.empty and type(None) not in kinds
        (kind,) = kinds - {type(None)}
        known = kind.__name__ if kind in {str, int, bool} else "any"
        fields.append({"id": each.name, "type": known, "required": is_required})
    return {"id": name, "parameters": fields}


def app_of(folder: Path) -> Flask:
    """Make the proxy."""
    app = Flask(__name__)
    app.config.update(
        FLOWACTIONS_SETTINGS=SmallHost(folder).settings, FLOWACTIONS_SECRETS={"orders": "whsec_x"}
    )

    @app.get("/v1/commands")
    def catalog() -> Any:
        return [described(name, command) for name, command in commands().items()]

    @app.post("/v1/do/<connector>/<name>")
    def do(connector: str, name: str) -> Response:
        given = typing.cast("dict[str, Any]", request.json)
        task_data = given.pop("spiff__task_data")
        command = commands()[f"{connector}/{name}"]
        made = command(**given)
        answer = made.execute(current_app.config, task_data)
        return Response(json.dumps(answer), mimetype="application/json")

    return app


class Backend(PythonScriptEngine):
    """The delegate of the product's backend.

    Args:
        url: of the proxy.
        mode: one of `MODES`.
    """

    def __init__(self, url: str, mode: str) -> None:
        super().__init__(TaskDataEnvironment({"url": WEBHOOK["webhookUrl"], "body": WEBHOOK["webhookBody"]}))
        self._url = url
        self._mode = mode

    def call_service(self, task: Task, **service: Any) -> str:
        """Call a command."""
        given = {name: each["value"] for name, each in service["operation_params"].items()}
        given["spiff__task_data"] = {}
        if self._mode == "ids of the backend":
            given |= {
                "spiff__process_instance_id": 7,
                "spiff__task_id": str(task.id),
                "spiff__callback_url": "x",
            }
        elif self._mode == "no ids, but a visit":
            given["visit"] = f"order 4711, {task.internal_data.get('key_or_index')}"
        answer = httpx.post(f"{self._url}/v1/do/{service['operation_name']}", json=given, trust_env=False)
        told = answer.raise_for_status().json()
        assert told["error"] is None
        return json.dumps(told["command_response"])


def run_twice(url: str, mode: str) -> None:
    """Run the process to its user's task, and again from how it was serialized before."""
    state = serializer().serialize_json(workflow_in("connected"))
    for _ in range(2):
        workflow = serializer().deserialize_json(state)
        workflow.script_engine = Backend(url, mode)
        workflow.do_engine_steps()
        assert workflow.completed


def main() -> None:
    """Run the process in each mode, with a folder and a proxy of its own."""
    catalog: Any = None
    sent: dict[str, list[tuple[str, str]]] = {}
    for number, mode in enumerate(MODES):
        folder = Path(sys.argv[1]) / str(number)
        folder.mkdir()
        app = app_of(folder)
        stop = connector_flowactions.start(app.config)
        server = make_server("127.0.0.1", 0, app, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        catalog = httpx.get(f"{url}/v1/commands", trust_env=False).raise_for_status().json()
        run_twice(url, mode)
        server.shutdown()
        stop()
        sent[mode] = [(node_id, event_id) for node_id, event_id, _ in outbox(folder)]
    sys.stdout.write(json.dumps({"catalog": catalog, "sent": sent}))


if __name__ == "__main__":
    main()
