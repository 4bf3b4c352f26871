// The service worker: without a network, and with threads on hosts that cannot send headers.

const RELOADED = 'packager:isolated';
const PATIENCE_MS = 4000;

let registered;

function register() {
  registered ??= navigator.serviceWorker.register('sw.js', { updateViaCache: 'none' });
  registered.catch(() => {}); // the page works without it
  return registered;
}

const isPossible = () => 'serviceWorker' in navigator && isSecureContext;
const isControlled = () => navigator.serviceWorker.controller !== null;

function controlled() {
  return new Promise((resolve) => {
    if (isControlled()) resolve(true);
    navigator.serviceWorker.addEventListener('controllerchange', () => resolve(true));
    setTimeout(() => resolve(isControlled()), PATIENCE_MS);
  });
}

// One reload per tab: where the worker's headers do not help, a second one would not either.
function mayReload() {
  try {
    if (sessionStorage.getItem(RELOADED) !== null) return false;
    sessionStorage.setItem(RELOADED, '1');
    return true;
  } catch {
    return false;
  }
}

/**
 * Reloads the page once, with a service worker, where only the worker's headers allow threads.
 *
 * @returns {Promise<boolean>} Whether the page goes on; false while it is being reloaded.
 */
export async function prepare() {
  if (!isPossible() || crossOriginIsolated) return true;
  const worked = await register().then(controlled, () => false);
  if (!worked || !mayReload()) return true;
  location.reload();
  return false;
}

/**
 * Tells the service worker to keep what was loaded before it controlled the page. It is installed
 * by the first call: while a page starts, it would only be in the way.
 */
export async function keep(urls) {
  if (!isPossible()) return;
  if (!await register().catch(() => undefined)) return;
  const { active } = await navigator.serviceWorker.ready;
  const own = new URL('../', import.meta.url).href;
  active.postMessage({ keep: urls.filter((url) => url.startsWith(own)) });
}
