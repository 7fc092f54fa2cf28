// What was downloaded, by its SHA-256: in the origin private file system, or in the Cache API where that has no files for
// us, or nowhere (private windows of some browsers).
//
// An entry appears whole or not at all: a file is written beside it and moved to its place, a response is put whole. A
// file that one tab reads or moves is locked to all others, so they wait for each other, entry by entry. What is read is
// compared with its hash all the same, by whoever reads it.

import { Failure } from "./failure.js";

const NAME = "packlight";
/** Whether several tabs can read a file at once in this way. */
const SHARED_HANDLES = "mode" in (/** @type {any} */ (globalThis).FileSystemSyncAccessHandle?.prototype ?? {});

/**
 * @typedef {object} Store
 * @property {string} kind what it is, in words
 * @property {() => Promise<Map<string, number>>} sizes every entry and its bytes
 * @property {(name: string, start?: number, end?: number) => Promise<Uint8Array | null>} read
 * @property {(name: string, bytes: Uint8Array) => Promise<void>} write
 * @property {(name: string) => Promise<void>} remove
 */

/**
 * The store of this origin; null where the browser has none for us.
 * @returns {Promise<Store | null>}
 */
export async function openStore() {
  try {
    if ("createSyncAccessHandle" in FileSystemFileHandle.prototype && "move" in FileSystemFileHandle.prototype) {
      const root = await navigator.storage.getDirectory();
      // What a browser without files had kept is of no use to the same one with files.
      await caches.delete(NAME);
      return new FileStore(await root.getDirectoryHandle(NAME, { create: true }));
    }
  } catch {
    // Private windows: there may still be the other.
  }
  try {
    return new CacheStore(await caches.open(NAME));
  } catch {
    return null;
  }
}

/** Files of the origin private file system. */
class FileStore {
  kind = "files of this site";

  /** @param {FileSystemDirectoryHandle} folder */
  constructor(folder) {
    this.folder = folder;
  }

  async sizes() {
    const sizes = new Map();
    for await (const [name, handle] of this.folder.entries()) {
      const file = await gone(handle.getFile());
      // A file that is being written for the first time has no bytes yet.
      if (file && file.size > 0) sizes.set(name, file.size);
    }
    return sizes;
  }

  read(name, start = 0, end = Infinity) {
    return turn(name, "shared", () => this.readFile(name, start, end));
  }

  async readFile(name, start, end) {
    /** @type {any} */
    const handle = await gone(this.folder.getFileHandle(name));
    if (!handle) return null;
    if (!SHARED_HANDLES) {
      const file = await gone(handle.getFile());
      const buffer = file && (await gone(file.slice(start, Math.min(end, file.size)).arrayBuffer()));
      return buffer && new Uint8Array(buffer);
    }
    // Without the copies that a Blob makes on the way.
    const file = await gone(handle.createSyncAccessHandle({ mode: "read-only" }));
    if (!file) return null;
    try {
      const bytes = new Uint8Array(Math.max(Math.min(end, file.getSize()) - start, 0));
      file.read(bytes, { at: start });
      return bytes;
    } finally {
      file.close();
    }
  }

  async write(name, bytes) {
    const part = `${name}.${crypto.randomUUID()}`;
    /** @type {any} */
    const handle = await this.folder.getFileHandle(part, { create: true });
    try {
      const file = await handle.createSyncAccessHandle();
      try {
        if (file.write(bytes) < bytes.length) throw new DOMException("not all was written", "QuotaExceededError");
        file.flush();
      } finally {
        file.close();
      }
      await turn(name, "exclusive", async () => {
        await this.removeFile(name);
        await handle.move(name);
      });
    } catch (error) {
      await this.removeFile(part);
      throw full(error);
    }
  }

  remove(name) {
    return turn(name, "exclusive", () => this.removeFile(name));
  }

  async removeFile(name) {
    // Gone already, or another tab is just writing it.
    await this.folder.removeEntry(name).catch(() => {});
  }
}

/** Responses of the Cache API. */
class CacheStore {
  kind = "cache of this site";

  /** @param {Cache} cache */
  constructor(cache) {
    this.cache = cache;
  }

  async sizes() {
    const sizes = new Map();
    for (const request of await this.cache.keys()) {
      const reply = await this.cache.match(request);
      const bytes = Number(reply?.headers.get("Content-Length"));
      sizes.set(new URL(request.url).pathname.slice(1), bytes);
    }
    return sizes;
  }

  async read(name, start = 0, end = Infinity) {
    const blob = await (await this.cache.match(address(name)))?.blob();
    if (!blob) return null;
    return new Uint8Array(await blob.slice(start, Math.min(end, blob.size)).arrayBuffer());
  }

  async write(name, bytes) {
    try {
      const headers = { "Content-Length": String(bytes.length) };
      await this.cache.put(address(name), new Response(bytes, { headers }));
    } catch (error) {
      throw full(error);
    }
  }

  async remove(name) {
    await this.cache.delete(address(name));
  }
}

/**
 * Does something with an entry when no other tab does what cannot be done beside it.
 * @template T
 * @param {string} name
 * @param {LockMode} mode
 * @param {() => Promise<T>} use
 * @returns {Promise<T>}
 */
function turn(name, mode, use) {
  return navigator.locks.request(`packlight entry ${name}`, { mode }, use);
}

/** An address that no server has, for an entry of the Cache API. */
const address = (/** @type {string} */ name) => `https://packlight.invalid/${name}`;

/**
 * What a promise gives; null where the file has been removed in the meantime.
 * @template T
 * @param {Promise<T>} promise
 * @returns {Promise<T | null>}
 */
async function gone(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "NotFoundError" || error.name === "NotReadableError") return null;
    throw error;
  }
}

/** @param {any} error */
function full(error) {
  if (error.name !== "QuotaExceededError") return error;
  return noSpace("the browser gives this site no more space");
}

/** @param {string} message */
export function noSpace(message) {
  return new Failure(message, "free the cache below or space on this device, or load without keeping the download");
}
