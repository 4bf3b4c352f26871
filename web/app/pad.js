// The drawing pad: ink on paper in the model's polarity, taken from the bundle's samples.

import { $ } from './dom.js';

const STROKE = 1 / 13; // of the pad's width: about two pixels of 28
const SIZE = 336;

let context;
let colours = { paper: '#000', ink: '#fff' };
let last;

/** Clears the pad. */
export function clear() {
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, SIZE, SIZE);
}

function pointOf(event) {
  const box = $('pad').getBoundingClientRect();
  const scale = SIZE / box.width;
  return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
}

function strokeTo(point) {
  context.strokeStyle = colours.ink;
  context.lineWidth = SIZE * STROKE;
  context.lineCap = 'round';
  context.lineJoin = 'round';
  context.beginPath();
  context.moveTo(last.x, last.y);
  context.lineTo(point.x, point.y);
  context.stroke();
  last = point;
}

/** The drawing as pixels. */
export const pixels = () => context.getImageData(0, 0, SIZE, SIZE);

/**
 * Makes the pad ready.
 *
 * @param {boolean} isDark Whether the model's images have light ink on dark paper.
 * @param {(image: ImageData) => void} onDrawn
 */
export function start(isDark, onDrawn) {
  const pad = $('pad');
  context = pad.getContext('2d', { willReadFrequently: true });
  colours = isDark ? { paper: '#000', ink: '#fff' } : { paper: '#fff', ink: '#000' };
  clear();
  pad.addEventListener('pointerdown', (event) => {
    pad.setPointerCapture(event.pointerId);
    last = pointOf(event);
    strokeTo(last);
    onDrawn(pixels());
  });
  pad.addEventListener('pointermove', (event) => {
    if (last === undefined) return;
    const between = event.getCoalescedEvents?.() ?? [];
    for (const one of between.length > 0 ? between : [event]) strokeTo(pointOf(one));
    onDrawn(pixels());
  });
  for (const name of ['pointerup', 'pointercancel']) {
    pad.addEventListener(name, () => {
      if (last !== undefined) onDrawn(pixels());
      last = undefined;
    });
  }
  $('clear').addEventListener('click', clear);
}
