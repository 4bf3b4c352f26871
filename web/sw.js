// The service worker: the app without a network, and the headers that threads need on hosts that
// cannot send them.
//
// The app's files and its runtimes come from a cache of this version. The manifest comes from the
// network while there is one. A bundle's other files are kept by the page, under their hashes.
// A new version waits until the pages of the old one are closed, so that no page mixes the two.

importScripts('app-files.js'); // self.APP = {version, shell}; a change of it is a new version

const SCOPE = new URL('./', self.location).href;
// Other apps of the same origin have caches of their own.
const PREFIX = `packager-app ${SCOPE} `;
const CACHE = PREFIX + self.APP.version;
const ISOLATED = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
  'Cross-Origin-Resource-Policy': 'same-origin',
};

self.addEventListener('install', (event) => {
  const shell = ['./', ...self.APP.shell].map((path) => new Request(path, { cache: 'reload' }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(shell)));
});

async function activate() {
  const names = await caches.keys();
  const old = names.filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

self.addEventListener('activate', (event) => event.waitUntil(activate()));

// What the page loaded before this worker controlled it.
self.addEventListener('message', ({ data, source }) => {
  if (data?.keep === undefined) return;
  const kept = caches.open(CACHE).then((cache) => Promise.all(data.keep.map(async (url) => {
    if (await cache.match(url) === undefined) await cache.add(url).catch(() => {});
  })));
  kept.then(() => source?.postMessage({ kept: data.keep.length }));
});

function isolated(response) {
  if (response.status === 0 || response.type === 'opaque') return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  // The status of a 304 or of a redirect allows no body.
  const body = [101, 204, 205, 304].includes(response.status) ? null : response.body;
  const { status, statusText } = response;
  return new Response(body, { status, statusText, headers });
}

async function fromCache(request) {
  const cache = await caches.open(CACHE);
  const isPage = request.mode === 'navigate';
  const kept = await cache.match(isPage ? SCOPE : request.url);
  if (kept !== undefined) return isolated(kept);
  const response = await fetch(request);
  if (response.ok && !isPage) await cache.put(request.url, response.clone());
  return isolated(response);
}

// A manifest says what a bundle is at this moment; without a network the last one counts.
async function fromNetwork(request) {
  const cache = await caches.open('packager-manifests');
  let response;
  try {
    response = await fetch(request);
  } catch (error) {
    const kept = await cache.match(request.url);
    if (kept === undefined) throw error;
    return kept;
  }
  if (response.ok) await cache.put(request.url, response.clone());
  return response;
}

const isPage = (url) => url.pathname === new URL(SCOPE).pathname ||
  url.href.startsWith(`${SCOPE}index.html`);

self.addEventListener('fetch', (event) => {
  const { request } = event;
  if (request.method !== 'GET') return;
  const url = new URL(request.url);
  if (url.pathname.endsWith('/manifest.json')) {
    event.respondWith(fromNetwork(request));
  } else if (url.href.startsWith(SCOPE) && (request.mode !== 'navigate' || isPage(url))) {
    event.respondWith(fromCache(request));
  }
});
