// A service worker that lets WebLLM, or any client of MLC's format, load a bundle that packlight has cut into parts.
//
// Copy it to the root of your site and register it before the client starts (index.html beside it shows how). It answers
// requests for a bundle's files, on whatever host, by joining the parts that packlight.json lists. Each chunk is compared
// with its SHA-256 before it is handed on: where one is wrong the answer breaks off, and the client sees a network error.
// Requests that are about no bundle of packlight's pass by.

/** Files that may be cut, or renamed, or that name those which are. */
const NAMES = /^(params_shard_\d+\.bin|(tensor|ndarray)-cache(-b16)?\.json|tokenizer\.json)$/;
const MANIFEST = "packlight.json";
/** A manifest is asked for anew after so long. */
const FRESH_MS = 60_000;

/**
 * @typedef {{path: string, bytes: number, media_type: string, sha256: string[], alias_of?: string,
 *   holds?: {file: string, bytes: number, start: number, end: number}}} Entry
 * @typedef {{chunk_bytes: number, files: Entry[]}} Manifest
 */

/** By folder. @type {Map<string, {manifest: Promise<Manifest | null>, asked: number}>} */
const manifests = new Map();

const scope = /** @type {any} */ (self);
scope.addEventListener("install", () => scope.skipWaiting());
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (event) => {
  const { request } = event;
  const name = decodeURIComponent(new URL(request.url).pathname.split("/").pop());
  // Whoever asks for ranges reads parts by itself.
  if (request.method !== "GET" || !NAMES.test(name) || request.headers.has("Range")) return;
  event.respondWith(answer(request, name));
});

/**
 * @param {Request} request
 * @param {string} name
 */
async function answer(request, name) {
  const folder = new URL("./", request.url).href;
  const manifest = await manifestOf(folder);
  const parts = manifest ? partsOf(manifest, name) : [];
  if (!manifest || parts.length === 0) return fetch(request);
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  const headers = { "Content-Length": String(bytes), "Content-Type": parts[0].media_type, "X-Content-Type-Options": "nosniff" };
  return new Response(joined(folder, manifest.chunk_bytes, parts, request.signal), { headers });
}

/**
 * The manifest of a folder; null where there is none.
 * @param {string} folder
 */
function manifestOf(folder) {
  const known = manifests.get(folder);
  if (known && Date.now() - known.asked < FRESH_MS) return known.manifest;
  // Where it cannot be asked for again, what was known stays.
  const manifest = readManifest(folder + MANIFEST).then((found) => found ?? known?.manifest ?? null);
  manifests.set(folder, { manifest, asked: Date.now() });
  manifest.catch(() => manifests.delete(folder));
  return manifest;
}

/**
 * A manifest; null where there is none: hosts say so with 404, with 403, with a web page, or with an answer that other
 * sites may not read, which is an error without a word.
 * @param {string} url
 * @returns {Promise<Manifest | null>}
 */
async function readManifest(url) {
  const reply = await fetch(url, { cache: "no-cache" }).catch(() => null);
  if (!reply || reply.status === 404 || reply.status === 403) return null;
  if (!reply.ok) throw new Error(`${url}: the server answered ${reply.status}`);
  if (reply.headers.get("Content-Type")?.startsWith("text/html")) return null;
  const manifest = await reply.json();
  if (manifest.schema_version !== 1) throw new Error(`${url}: schema_version ${manifest.schema_version}; this service worker reads 1`);
  return manifest;
}

/**
 * The files on the host that hold a file of the bundle, in order; none where it has no such file.
 * @param {Manifest} manifest
 * @param {string} name
 */
function partsOf({ files, chunk_bytes }, name) {
  const alias = files.find((file) => file.path === name && file.alias_of)?.alias_of ?? name;
  const parts = files.filter((file) => !file.alias_of && (file.holds?.file ?? file.path) === alias);
  let at = 0;
  for (const { path, bytes, sha256, holds } of parts) {
    if (sha256.length !== Math.max(1, Math.ceil(bytes / chunk_bytes)) || (holds && (holds.start !== at || holds.end !== at + bytes))) {
      throw new Error(`${MANIFEST}: \`${path}\` does not fit what is before it`);
    }
    at += bytes;
  }
  if (parts[0]?.holds && at !== parts[0].holds.bytes) throw new Error(`${MANIFEST}: the end of \`${name}\` is in no file`);
  return parts;
}

/**
 * Verified bytes of some files, one after the other, as they are asked for: a chunk is held at a time.
 * @param {string} folder
 * @param {number} chunkBytes
 * @param {Entry[]} parts
 * @param {AbortSignal} signal
 */
function joined(folder, chunkBytes, parts, signal) {
  const chunks = chunksOf(folder, chunkBytes, parts, signal);
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await chunks.return();
    },
  });
}

/**
 * @param {string} folder
 * @param {number} chunkBytes
 * @param {Entry[]} parts
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Uint8Array, void, void>}
 */
async function* chunksOf(folder, chunkBytes, parts, signal) {
  for (const { path, bytes, sha256 } of parts) {
    // Clients keep whole files; their parts need not be kept beside them, and wrong bytes must not be.
    const reply = await fetch(folder + encodeURIComponent(path), { signal, cache: "no-store" });
    if (!reply.ok || !reply.body) throw new Error(`\`${path}\`: the server answered ${reply.status}`);
    const reader = reply.body.getReader();
    let rest = new Uint8Array();
    try {
      for (let i = 0; i * chunkBytes < bytes; i += 1) {
        const chunk = new Uint8Array(Math.min(chunkBytes, bytes - i * chunkBytes));
        for (let filled = 0; filled < chunk.length; ) {
          if (rest.length === 0) {
            const { done, value } = await reader.read();
            if (done) throw new Error(`\`${path}\` ends before byte ${bytes}`);
            rest = value;
          }
          const piece = rest.subarray(0, chunk.length - filled);
          chunk.set(piece, filled);
          filled += piece.length;
          rest = rest.subarray(piece.length);
        }
        const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", chunk));
        const hash = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
        if (hash !== sha256[i]) throw new Error(`\`${path}\` chunk ${i} does not have the SHA-256 of ${MANIFEST}`);
        yield chunk;
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }
}
