// The one socket of this tab. It connects again by itself, and says since when what is shown may be old.

import { signal } from './dom.js';
import { readJson } from './format.js';
import { file, get, time } from './source.js';

/** `connecting` at first, then `live`, or `stale` while there is no connection; `file` in an exported file. */
export const connection = signal(file ? 'file' : 'connecting');
/** Since when there is no connection. */
export const staleSince = signal(0);

/** @typedef {{ from: () => number | undefined, open: () => string[], onMessage: (message: any) => void }} Subscriber */

/** @type {Map<string, Subscriber>} */
const subscribers = new Map();
/** @type {((message: any) => void) | null} */
let onLists = null;
/** @type {WebSocket | null} */
let socket = null;
let attempt = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let again;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let silence;

/** @param {object} message */
function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

/** @param {string} id @param {Subscriber} subscriber */
function subscribe(id, subscriber) {
  send({ subscribe: id, from: subscriber.from(), state: true, events: false, open: subscriber.open() });
}

/** Connects, unless this is a file. */
export function connect() {
  if (file) return;
  clearTimeout(again);
  listen();
  const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
  socket = new WebSocket(`${scheme}://${location.host}/ws`);
  socket.onopen = () => {
    attempt = 0;
    connection.value = 'live';
    staleSince.value = 0;
    send({ sessions: true });
    for (const [id, subscriber] of subscribers) subscribe(id, subscriber);
  };
  socket.onmessage = (event) => {
    listen();
    const message = readJson(event.data);
    if (message.sessions) onLists?.(message);
    else if (message.session) subscribers.get(message.session)?.onMessage(message);
  };
  socket.onclose = lose;
}

/** The server says something every 20 seconds: after a longer silence the connection is lost, though nobody closed it. */
function listen() {
  clearTimeout(silence);
  silence = setTimeout(lose, 60_000);
}

/** Drops the connection, and tries another one after a while. */
function lose() {
  clearTimeout(silence);
  if (socket) {
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }
  if (connection.value !== 'stale') staleSince.value = time();
  connection.value = 'stale';
  attempt += 1;
  // A socket does not say why it was refused: the browser may not be signed in any more.
  get('/meta').catch(() => {});
  again = setTimeout(connect, Math.min(500 * 2 ** Math.min(attempt, 5), 10_000));
}

/** Connects at once instead of after the wait. */
export function connectNow() {
  if (connection.value !== 'live' && socket?.readyState !== WebSocket.CONNECTING) connect();
}

addEventListener('online', connectNow);

/** Follows the lists. @param {(message: Loose) => void} listener */
export function followLists(listener) {
  onLists = listener;
}

/** Follows a session, until the answer is called. @param {string} id @param {Subscriber} subscriber */
export function follow(id, subscriber) {
  subscribers.set(id, subscriber);
  subscribe(id, subscriber);
  return () => {
    subscribers.delete(id);
    send({ unsubscribe: id });
  };
}

/** Tells the server again what is to be followed: other frames were opened. @param {string} id */
export function refollow(id) {
  const subscriber = subscribers.get(id);
  if (subscriber) subscribe(id, subscriber);
}
