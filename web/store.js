// Keeps a bundle's files in the browser's cache under their sha256. A name that is a hash never
// goes stale, and bundles share what they have in common.

const NAME = 'packager-files';

// Cache keys are addresses. This one is never fetched.
const keyOf = (hash) => `${self.location.origin}/.packager/sha256/${hash}`;

/**
 * Opens the store.
 *
 * @returns {Promise<{get: Function, put: Function}|undefined>} `get(hash)` gives bytes or undefined;
 *   undefined where the browser has no Cache API or forbids it.
 */
export async function openStore() {
  if (self.caches === undefined) return undefined;
  const cache = await caches.open(NAME).catch(() => undefined);
  if (cache === undefined) return undefined;
  return {
    async get(hash) {
      const response = await cache.match(keyOf(hash)).catch(() => undefined);
      return response === undefined ? undefined : new Uint8Array(await response.arrayBuffer());
    },
    // A full disk must not stop the page.
    put: (hash, bytes) => cache.put(keyOf(hash), new Response(bytes)).catch(() => {}),
  };
}

/** What a page remembers of earlier visits; it may be forbidden to remember anything. */
export const memory = {
  get(key) {
    try { return localStorage.getItem(key); } catch { return null; }
  },
  set(key, value) {
    try { localStorage.setItem(key, value); } catch { /* it is measured again next time */ }
  },
};
