"""A custom workload, as somebody else's server would be: it listens, and reports its health. Arguments: host, port."""

import http.server
import sys


class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Well).serve_forever()
