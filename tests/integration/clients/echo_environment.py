"""An OpenEnv environment server in a few lines of standard library: `/health`, and reset, step, state over a WebSocket."""

import base64
import hashlib
import json
import socketserver


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = {}
        request = self.rfile.readline().decode()
        while line := self.rfile.readline().strip():
            name, _, value = line.decode().partition(":")
            head[name.lower()] = value.strip()
        if request.startswith("GET /health "):
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        elif request.startswith("GET /ws "):
            proof = hashlib.sha1(
                (head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode(),
                usedforsecurity=False,
            ).digest()
            accept = base64.b64encode(proof)
            self.wfile.write(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
                b"sec-websocket-accept: " + accept + b"\r\n\r\n"
            )
            self.converse()

    def converse(self):
        steps = 0
        while (message := self.receive()) is not None:
            data = message.get("data", {})
            if message["type"] == "step":
                steps += 1
                self.say(
                    "observation", observation={"echo": data["message"]}, reward=1.0, done=False
                )
            elif message["type"] == "state":
                self.say("state", step_count=steps)
            elif message["type"] == "reset":
                steps = 0
                self.say("observation", observation={}, reward=None, done=False)

    def receive(self):
        """Return the next message, None at the end; clients mask, messages are unfragmented."""
        while (head := self.rfile.read(2)) and len(head) == 2:
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8))
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size)))
            kind = head[0] & 15
            if kind == 1:
                return json.loads(data)
            if kind == 8:
                self.wfile.write(b"\x88" + bytes([len(data)]) + data)
                return None
            if kind == 9:
                self.wfile.write(b"\x8a" + bytes([len(data)]) + data)
        return None

    def say(self, kind, **data):
        text = json.dumps({"type": kind, "data": data}).encode()
        size = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2)
        self.wfile.write(b"\x81" + size + text)


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Handler).serve_forever()
