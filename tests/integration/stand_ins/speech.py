"""A custom workload, as somebody else's server would be: it listens, reports its health, and requires a key of its own for
all else. Arguments: host, port."""

import http.server
import sys


class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Well).serve_forever()
