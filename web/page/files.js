// The files of a bundle, from the store or from its host. Nothing leaves here before its SHA-256 is compared, where
// there is a packlight.json; that of a plain MLC bundle's files nobody knows.
//
// Memory: a chunk of at most 64 MiB (8 as packlight writes them) per connection, and what a connection has received.
// Connections are as few as keep that within IN_FLIGHT_BYTES, since browsers copy what they hash and write, and let copies
// gather: four of 8 MiB took 150 MB.

import { sha256 } from "./digest.js";
import { Failure } from "./failure.js";
import { giveBack } from "./memory.js";
import { noSpace } from "./store.js";
import { Stream, small } from "./stream.js";

/** As many as WebLLM has, which hosts therefore bear; two, where chunks are of 8 MiB. */
const CONNECTIONS = 4;
const IN_FLIGHT_BYTES = 16 << 20;
/** Chunks that are held where nothing is kept, for what is read in small pieces. */
const HELD_BYTES = 32 << 20;
const MANIFEST = "packlight.json";
const PLAIN_MANIFESTS = ["tensor-cache.json", "ndarray-cache.json"];
/** Another tab may be downloading what is waited for here. */
const LOOK_AGAIN_MS = 500;

/** @typedef {{path: string, bytes: number, sha256: string[]}} Entry */

export class Files {
  /**
   * @param {string} url the bundle's folder, with a slash at its end
   * @param {import("./store.js").Store | null} store
   * @param {{planned: (plan: {bytes: number, cached: number}) => void, received: (bytes: number) => void,
   *   absent: (path: string) => void}} hear
   */
  constructor(url, store, hear) {
    this.url = url;
    this.store = store;
    this.hear = hear;
    /** The first error: what the engine says of it knows less. @type {any} */
    this.failure = null;
    /** Ends whatever is on its way. */
    this.ending = new AbortController();
    /** @type {Uint8Array | null} */
    this.json = null;
    /** Whether the host could not be asked for the manifest, and one that is known has to do. */
    this.offline = false;
    /** @type {Map<string, Entry>} */
    this.entries = new Map();
    this.chunkBytes = 0;
    /** Files that are on their way, and what wakes those who wait for their chunks. @type {Set<string>} */
    this.coming = new Set();
    this.arrived = new EventTarget();
    /** Streams of files that are read as they come, by path. @type {Map<string, {stream: Stream, at: number}>} */
    this.streams = new Map();
    /** What the engine was given last. @type {Uint8Array | null} */
    this.lent = null;
    /** By hash, the latest used last. @type {Map<string, Uint8Array>} */
    this.held = new Map();
  }

  /**
   * Asks for packlight.json; null where the bundle has none. `parse` validates it.
   * @param {(json: Uint8Array) => {chunk_bytes: number, files: Entry[]}} parse
   */
  async open(parse) {
    const name = `manifest-${await sha256(new TextEncoder().encode(this.url))}`;
    /** Why there is none that can be read, if that may be the network's fault. */
    let silence = null;
    try {
      this.json = await this.small(MANIFEST, "no-cache");
    } catch (error) {
      this.json = error.unreachable ? ((await this.store?.read(name)) ?? null) : null;
      this.offline = this.json !== null;
      silence = error;
    }
    if (!this.json) {
      // Where there is no file some hosts answer with a page, or with what other sites may not read.
      if (!(await this.planPlain()) && silence) throw silence;
      return null;
    }
    const described = parse(this.json);
    // No store, or no space for a few KB: then it is not remembered.
    if (!this.offline) await this.store?.write(name, this.json).catch(() => {});
    for (const entry of described.files) this.entries.set(entry.path, entry);
    this.chunkBytes = described.chunk_bytes;
    return described;
  }

  /** Whether a plain MLC bundle is there, and how much of it. */
  async planPlain() {
    for (const name of PLAIN_MANIFESTS) {
      const json = await this.small(name, "default").catch(() => null);
      try {
        const { records } = JSON.parse(new TextDecoder().decode(json ?? undefined));
        const bytes = records.reduce((/** @type {number} */ sum, { nbytes }) => sum + nbytes, 0);
        this.hear.planned({ bytes, cached: 0 });
        return true;
      } catch {
        // It is for the engine to say what is wrong with it.
      }
    }
    return false;
  }

  // What the engine asks for.

  /** @param {string} path */
  async file(path) {
    if (path === MANIFEST) return this.json;
    try {
      return await this.small(path, "default");
    } catch (error) {
      // Without packlight.json nobody knows which files there are, and a host that was read from may have said that this is
      // none of them in a way that other sites may not read.
      if (!this.json && error.unreachable && navigator.onLine) {
        this.hear.absent(path);
        return null;
      }
      this.fail(error);
      throw error;
    }
  }

  /** @param {string} path @param {RequestCache} cache */
  small(path, cache) {
    return small(this.url + encodeURIComponent(path), this.ending.signal, cache);
  }

  /**
   * The bytes are the engine's until it asks again: it copies them at once.
   * @param {string} path @param {number} start @param {number} end
   */
  async range(path, start, end) {
    if (this.lent) giveBack(this.lent);
    this.lent = null;
    try {
      this.lent = await (this.json ? this.verified(path, start, end) : this.plain(path, start, end));
      return this.lent;
    } catch (error) {
      this.fail(error);
      throw error;
    }
  }

  /**
   * Begins to fetch what will be read, in this order.
   * @param {string[]} paths
   */
  announce(paths) {
    if (!this.json) return;
    const entries = paths.map((path) => this.entry(path));
    for (const { path } of this.store ? entries : []) this.coming.add(path);
    this.fetchAll(entries).catch((error) => this.fail(error));
  }

  // Verified files.

  /** @param {Entry[]} entries */
  async fetchAll(entries) {
    const sizes = (await this.store?.sizes()) ?? new Map();
    let [bytes, cached] = [0, 0];
    for (const entry of entries) {
      bytes += entry.bytes;
      entry.sha256.forEach((hash, i) => {
        const length = this.length(entry, i);
        if (sizes.get(hash) === length) cached += length;
      });
    }
    if (this.failure) throw this.failure;
    this.hear.planned({ bytes, cached });
    if (!this.store) return;
    const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
    const [needed, free] = [bytes - cached, Math.max(quota - usage, 0)];
    if (needed > free) {
      throw noSpace(`the bundle needs ${megabytes(needed)} more, but the browser gives this site ${megabytes(free)}`);
    }
    const queue = entries[Symbol.iterator]();
    const { signal } = this.ending;
    const connection = async () => {
      for (const entry of queue) {
        // One tab at a time; the next finds everything there.
        if (!this.failure) await navigator.locks.request(`packlight ${entry.sha256[0]}`, { signal }, () => this.fetch(entry));
        this.coming.delete(entry.path);
        this.wake();
      }
    };
    const length = Math.max(1, Math.min(CONNECTIONS, Math.floor(IN_FLIGHT_BYTES / this.chunkBytes)));
    await Promise.all(Array.from({ length }, connection));
  }

  /**
   * Sees to it that all chunks of a file are in the store.
   * @param {Entry} entry
   */
  async fetch(entry) {
    let stream = null;
    for (const [i, hash] of entry.sha256.entries()) {
      if (this.failure) break;
      if (await this.store.read(hash, 0, 0)) {
        // What follows has to be asked for anew.
        stream?.cancel();
        stream = null;
        continue;
      }
      stream ??= this.stream(entry, i);
      const bytes = await this.receive(entry, i, stream);
      await this.store.write(hash, bytes);
      giveBack(bytes);
      this.wake();
    }
    stream?.cancel();
  }

  /** @param {string} path @param {number} start @param {number} end */
  async verified(path, start, end) {
    const entry = this.entry(path);
    const first = Math.floor(start / this.chunkBytes);
    const chunk = (/** @type {number} */ i) => ({ from: i * this.chunkBytes, to: i * this.chunkBytes + this.length(entry, i) });
    if (chunk(first).from === start && chunk(first).to === end) return this.chunk(entry, first);
    const bytes = new Uint8Array(end - start);
    for (let i = first; i * this.chunkBytes < end; i += 1) {
      const { from, to } = chunk(i);
      const [a, b] = [Math.max(start, from), Math.min(end, to)];
      // Some bytes of a chunk that went by whole, and was compared then.
      const piece =
        (await this.store?.read(entry.sha256[i], a - from, b - from)) ?? (await this.hold(entry, i)).subarray(a - from, b - from);
      bytes.set(piece, a - start);
    }
    return bytes;
  }

  /**
   * A chunk of which some bytes are wanted now, and others perhaps soon.
   * @param {Entry} entry
   * @param {number} i
   */
  async hold(entry, i) {
    const hash = entry.sha256[i];
    const bytes = this.held.get(hash) ?? (await this.chunk(entry, i));
    if (!this.store) {
      this.held.delete(hash);
      this.held.set(hash, bytes);
      const [oldest] = this.held.keys();
      if (this.held.size > Math.max(1, Math.floor(HELD_BYTES / this.chunkBytes))) this.held.delete(oldest);
    }
    return bytes;
  }

  /**
   * A chunk, from the store if it is whole there.
   * @param {Entry} entry
   * @param {number} i
   */
  async chunk(entry, i) {
    const hash = entry.sha256[i];
    for (;;) {
      if (this.failure) throw this.failure;
      // It may come, and be here, while the store says that it is not.
      const coming = this.coming.has(entry.path);
      const bytes = await this.store?.read(hash);
      if (bytes && (await sha256(bytes)) === hash) return bytes;
      if (bytes) await this.store.remove(hash);
      if (!coming) break;
      await this.woken();
    }
    const bytes = await this.next(entry, i);
    await this.store?.write(hash, bytes);
    return bytes;
  }

  /**
   * A chunk from its host, by the stream that ended before it where there is one.
   * @param {Entry} entry
   * @param {number} i
   */
  async next(entry, i) {
    let open = this.streams.get(entry.path);
    if (open?.at !== i) {
      open?.stream.cancel();
      open = { stream: this.stream(entry, i), at: i };
    }
    this.streams.delete(entry.path);
    const bytes = await this.receive(entry, i, open.stream);
    open.at += 1;
    if (open.at < entry.sha256.length) this.streams.set(entry.path, open);
    else open.stream.cancel();
    return bytes;
  }

  /** @param {Entry} entry @param {number} i @param {RequestCache} [cache] */
  stream(entry, i, cache) {
    const url = this.url + encodeURIComponent(entry.path);
    const { received } = this.hear;
    return new Stream(url, i * this.chunkBytes, entry.bytes, this.ending.signal, { total: entry.bytes, cache, received });
  }

  /**
   * The next chunk of a stream, compared with its hash; once more where that is wrong, past every cache between us: a
   * bit may flip on the way; twice is no accident.
   * @param {Entry} entry @param {number} i @param {Stream} stream
   */
  async receive(entry, i, stream) {
    const length = this.length(entry, i);
    let bytes = await stream.read(length);
    if ((await sha256(bytes)) === entry.sha256[i]) return bytes;
    this.hear.received(-length);
    const another = this.stream(entry, i, "reload");
    bytes = await another.read(length);
    another.cancel();
    if ((await sha256(bytes)) === entry.sha256[i]) return bytes;
    const start = i * this.chunkBytes;
    throw new Failure(
      `\`${entry.path}\` chunk ${i} (bytes ${start}..${start + length}) does not have the SHA-256 of packlight.json`,
      "nothing of it was used or kept. Load again, in case a new release has just taken its place; if that does not help, the bundle on the server is damaged: tell whoever publishes it",
    );
  }

  /** @param {Entry} entry @param {number} i */
  length(entry, i) {
    return Math.min(this.chunkBytes, entry.bytes - i * this.chunkBytes);
  }

  /** @param {string} path @returns {Entry} */
  entry(path) {
    const entry = this.entries.get(path);
    if (!entry) throw new Failure(`\`${path}\` is not in packlight.json`);
    return entry;
  }

  // Files without hashes: as they come, and nothing keeps them but the browser's own cache.

  /** @param {string} path @param {number} start @param {number} end */
  async plain(path, start, end) {
    let open = this.streams.get(path);
    if (open?.at !== start) {
      open?.stream.cancel();
      const options = { cache: /** @type {RequestCache} */ ("default"), received: this.hear.received };
      const url = this.url + encodeURIComponent(path);
      open = { stream: new Stream(url, start, Number.MAX_SAFE_INTEGER, this.ending.signal, options), at: start };
      this.streams.set(path, open);
    }
    const bytes = await open.stream.read(end - start);
    open.at = end;
    return bytes;
  }

  // Waiting and failing.

  wake() {
    this.arrived.dispatchEvent(new Event("chunk"));
  }

  woken() {
    return new Promise((resolve) => {
      this.arrived.addEventListener("chunk", resolve, { once: true });
      setTimeout(resolve, LOOK_AGAIN_MS);
    });
  }

  /** @param {any} error */
  fail(error) {
    this.failure ??= error;
    this.wake();
  }

  /** Ends everything that is on its way. @param {Failure} why */
  close(why = new Failure("the bundle was closed")) {
    this.fail(why);
    this.ending.abort(why);
  }
}

/** @param {number} bytes */
function megabytes(bytes) {
  return `${Math.ceil(bytes / 1e6)} MB`;
}
