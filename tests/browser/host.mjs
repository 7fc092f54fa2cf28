// A host with faults: everything comes from `packlight serve`, and may be bent on its way.

import { spawn } from "node:child_process";
import http from "node:http";
import { createInterface } from "node:readline";

/** Serves a bundle and the page. */
export class Host {
  /** @param {string} packlight @param {string} bundle @param {string} page */
  static async start(packlight, bundle, page) {
    const host = new Host();
    host.child = spawn(packlight, ["serve", bundle, "--port", "0", `--web=${page}`], { stdio: ["ignore", "pipe", "ignore"] });
    for await (const line of createInterface({ input: host.child.stdout })) {
      host.behind = line.trim();
      break;
    }
    host.server = http.createServer((request, response) => host.pass(request, response));
    await new Promise((resolve) => host.server.listen(0, "127.0.0.1", resolve));
    host.url = `http://127.0.0.1:${host.server.address().port}/`;
    return host;
  }

  constructor() {
    this.heal();
  }

  /** A good host again, which has seen nothing. */
  heal() {
    /** What was asked of the bundle: names, with ranges. @type {{name: string, range?: string}[]} */
    this.asked = [];
    /** Flips a byte at this offset of a file. @type {{name: string, offset: number} | null} */
    this.flip = null;
    /** Cuts so many answers with this file where they reach this byte of it, or at once if they begin later. */
    this.cut = { name: "", after: 0, times: 0 };
    /** Answers slowly enough for others to come in between. */
    this.delay = 0;
    /** Goes silent at the byte where it would cut, and never ends. */
    this.stalls = false;
    /** Knows no ranges: every file is sent from its beginning. */
    this.rangeless = false;
    /** Says what is not there as nginx does by default: without leave for other sites to read it. */
    this.hides404 = false;
  }

  pass(request, response) {
    const path = new URL(request.url, this.url).pathname;
    const name = path.slice(1);
    if (/\.(bin|json|jinja|part\d+)$/.test(name)) this.asked.push({ name, range: request.headers.range });
    const headers = { ...request.headers, host: new URL(this.behind).host };
    if (this.rangeless) delete headers.range;
    const options = { method: request.method, headers };
    const forward = http.request(this.behind.replace(/\/$/, "") + request.url, options, async (answer) => {
      if (this.delay && name.endsWith(".bin")) await new Promise((resolve) => setTimeout(resolve, this.delay));
      if (this.hides404 && answer.statusCode === 404) delete answer.headers["access-control-allow-origin"];
      response.writeHead(answer.statusCode, answer.headers);
      let at = Number(/bytes=(\d+)-/.exec(headers.range ?? "")?.[1] ?? 0);
      let left = this.cut.name === name && this.cut.times-- > 0 ? Math.max(this.cut.after - at, 0) : Infinity;
      for await (const piece of answer) {
        const bytes = Buffer.from(piece);
        const offset = this.flip?.name === name ? this.flip.offset - at : -1;
        if (offset >= 0 && offset < bytes.length) bytes[offset] ^= 1;
        at += bytes.length;
        if (bytes.length >= left) {
          response.write(bytes.subarray(0, left));
          if (this.stalls) return;
          // A browser throws away what it has not handed on when a connection breaks.
          setTimeout(() => response.destroy(), 300);
          forward.destroy();
          return;
        }
        left -= bytes.length;
        response.write(bytes);
      }
      response.end();
    });
    forward.on("error", () => response.destroy());
    request.pipe(forward);
  }

  stop() {
    this.server.close();
    this.server.closeAllConnections();
    this.child.kill();
  }
}
