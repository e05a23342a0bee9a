"""`langchain-nvidia-openshell`: both documented ways to a Sandbox, files, and a real Deep Agent whose model is scripted."""

import json
import os

import openshell
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_nvidia_openshell import OpenShellSandbox, __version__


class ScriptedModel(GenericFakeChatModel):
    """A chat model that says what it is told and takes any tools."""

    def bind_tools(self, _tools, **_options):
        return self


def own_sandbox():
    with openshell.Sandbox(workspace="default", delete_on_exit=True) as sandbox:
        backend = OpenShellSandbox(sandbox=sandbox)
        backend.upload_files([("/sandbox/hello.py", b"print('hello from openshell')\n")])
        big = os.urandom(1_300_000)
        uploaded = backend.upload_files([("/sandbox/big", big), ("relative", b"")])
        back = backend.download_files(["/sandbox/big", "/sandbox/none", "/sandbox"])
        return {
            "ran": backend.execute("python3 /sandbox/hello.py").output,
            "lines": backend.execute("cd /tmp\npwd\nfalse").__dict__,
            "uploaded": [item.error for item in uploaded],
            "same": back[0].content == big,
            "errors": [item.error for item in back[1:]],
            "timeout": backend.execute("sleep 60", timeout=1).exit_code,
            **tools(backend),
        }


def tools(backend):
    """The file tools that an agent gets; each is a script run inside."""
    backend.write("/sandbox/notes/a.txt", "alpha\nbeta\n")
    backend.edit("/sandbox/notes/a.txt", "beta", "gamma")
    return {
        "read": "gamma" in str(backend.read("/sandbox/notes/a.txt")),
        "ls": "a.txt" in str(backend.ls("/sandbox/notes")),
        "glob": "a.txt" in str(backend.glob("**/*.txt", path="/sandbox")),
        "grep": "gamma" in str(backend.grep("gamma", path="/sandbox/notes")),
    }


def agent():
    with openshell.SandboxClient.from_active_cluster() as client:
        client.create(workspace="default", name="deep")
        client.wait_ready("deep", workspace="default", timeout_seconds=30)
        backend = OpenShellSandbox(sandbox=client.get_session("deep", workspace="default"))
        call = {"name": "execute", "args": {"command": "echo in:$OPENSHELL_SANDBOX"}, "id": "c1"}
        model = ScriptedModel(
            messages=iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="done")])
        )
        state = create_deep_agent(model=model, backend=backend).invoke(
            {"messages": [{"role": "user", "content": "run it"}]}
        )
        client.delete("deep", workspace="default")
        client.wait_deleted("deep", workspace="default", timeout_seconds=30)
        return [message.content for message in state["messages"][-2:]]


print(json.dumps({"version": __version__, **own_sandbox(), "agent": agent()}))  # noqa: T201 - the test reads it
