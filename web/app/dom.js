// The page's elements and how they are filled.

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/**
 * Makes an element.
 *
 * @param {string} name
 * @param {object} properties Properties of the element; `data-` and `aria-` names are attributes.
 * @param {...(Node|string)} children
 */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes('-')) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

const TICK = 1000;

/** Bytes for people: 128 kB. */
export function bytesText(bytes) {
  if (bytes < TICK) return `${bytes} B`;
  const [value, unit] = bytes < TICK ** 2 ? [bytes / TICK, 'kB'] : [bytes / TICK ** 2, 'MB'];
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

/** Milliseconds for people: 0.84 ms, 12.5 ms, 1.2 s. */
export function msText(ms) {
  if (ms >= TICK) return `${(ms / TICK).toFixed(1)} s`;
  if (ms >= 100) return `${Math.round(ms)} ms`;
  return `${ms.toFixed(ms < 10 ? 2 : 1)} ms`;
}

export const percentText = (score) => `${(100 * score).toFixed(1)} %`;

/** Shows a message that stays until it is closed or replaced. */
export function notify(error) {
  $('notice-title').textContent = sentence(error.message);
  $('notice-hint').textContent = error.hint ? sentence(error.hint) : '';
  $('notice').hidden = false;
}

export function clearNotice() {
  $('notice').hidden = true;
}

function sentence(text) {
  const start = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

/** Draws a bitmap, an image or pixels into a canvas of their size. */
export function paint(canvas, source) {
  canvas.width = source.displayWidth ?? source.naturalWidth ?? source.width;
  canvas.height = source.displayHeight ?? source.naturalHeight ?? source.height;
  const context = canvas.getContext('2d');
  if (source instanceof ImageData) context.putImageData(source, 0, 0);
  else context.drawImage(source, 0, 0);
}
