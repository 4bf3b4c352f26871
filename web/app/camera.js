// The camera: each frame that the model has time for.

import { $ } from './dom.js';

const REASONS = {
  NotAllowedError: ['this page may not use the camera', 'allow it in the address bar, then press Start again'],
  SecurityError: ['this page may not use the camera', 'allow it in the address bar, then press Start again'],
  NotFoundError: ['there is no camera here', 'connect one, or use Image'],
  OverconstrainedError: ['there is no such camera here', 'try again'],
  NotReadableError: ['the camera is in use by another program', 'close the other program, then press Start again'],
};

let stream;
let facing = 'environment';
let generation = 0;

export const isSupported = () => navigator.mediaDevices?.getUserMedia !== undefined;

function explained(error) {
  const [message, hint] = REASONS[error.name] ?? [`the camera cannot be used: ${error.message}`, ''];
  return Object.assign(new Error(message, { cause: error }), { hint });
}

// The part of the picture that the model gets when it crops.
function placeFrame({ width, height, fit }) {
  const frame = $('frame');
  const video = $('camera');
  frame.hidden = fit !== 'crop' || !video.videoWidth;
  if (frame.hidden) return;
  const box = video.getBoundingClientRect();
  const scale = Math.min(box.width / video.videoWidth, box.height / video.videoHeight);
  const [w, h] = [video.videoWidth * scale, video.videoHeight * scale];
  const cropped = w * height >= h * width
    ? { w: (h * width) / height, h } : { w, h: (w * height) / width };
  Object.assign(frame.style, {
    width: `${cropped.w}px`, height: `${cropped.h}px`,
    left: `${(box.width - cropped.w) / 2}px`, top: `${(box.height - cropped.h) / 2}px`,
  });
}

const nextFrame = (video) => new Promise((resolve) => {
  if (video.requestVideoFrameCallback) video.requestVideoFrameCallback(resolve);
  else requestAnimationFrame(resolve);
});

async function follow(image, onFrame) {
  const mine = generation;
  const video = $('camera');
  while (mine === generation) {
    await nextFrame(video);
    if (mine !== generation || video.videoWidth === 0) continue;
    placeFrame(image);
    await onFrame(video);
  }
}

/** Stops the camera. */
export function stop() {
  generation += 1;
  stream?.getTracks().forEach((track) => track.stop());
  stream = undefined;
  $('camera').srcObject = null;
  $('camera-toggle').textContent = 'Start';
  $('frame').hidden = true;
}

export const isRunning = () => stream !== undefined;

/**
 * Starts the camera.
 *
 * @param {object} image The manifest's declaration, for the frame that is drawn.
 * @param {(video: HTMLVideoElement) => Promise<void>} onFrame Is awaited before the next frame.
 * @throws {Error} With a message and a hint for people.
 */
export async function start(image, onFrame) {
  stop();
  const mine = generation;
  try {
    const video = { facingMode: facing, width: { ideal: 640 }, height: { ideal: 480 } };
    const opened = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    if (mine !== generation) return opened.getTracks().forEach((track) => track.stop());
    stream = opened;
  } catch (error) {
    throw explained(error);
  }
  const video = $('camera');
  video.srcObject = stream;
  video.classList.toggle('mirrored', facing === 'user');
  $('camera-toggle').textContent = 'Stop';
  await video.play().catch(() => {}); // stopped meanwhile
  const devices = await navigator.mediaDevices.enumerateDevices();
  $('camera-turn').hidden = devices.filter(({ kind }) => kind === 'videoinput').length < 2;
  follow(image, onFrame);
}

/** The other side's camera next time. */
export function turn() {
  facing = facing === 'user' ? 'environment' : 'user';
}
