// Where the page reads from and writes to: the server, or the data within an exported file.

import { signal } from './dom.js';
import { early } from './early.js';
import { openFile } from './file.js';
import { readJson } from './format.js';
import { readAddress, search } from './route.js';

const BASE = '/api/v1';

/** What went wrong, as the server's problem document says it. */
export class Problem extends Error {
  /** @param {Loose} document */
  constructor(document) {
    super(document.detail ?? document.title ?? 'The server did not answer.');
    this.code = document.code ?? '';
    this.title = document.title ?? '';
    this.hint = document.hint ?? '';
    this.status = document.status ?? 0;
  }
}

/** The data of an exported file; null where a server answers. */
export const file = openFile();

/** Whether the server knows this browser. */
export const signedOut = signal(false);

let ahead = 0;
/** The server's time: the browser's, unless the two clocks clearly differ. */
export const time = () => Date.now() + ahead;

/** @param {Response} response */
async function problem(response) {
  if (response.status === 401) signedOut.value = true;
  const body = await response.json().catch(() => ({}));
  return new Problem({ title: `HTTP ${response.status}`, status: response.status, ...body });
}

/** @param {string} path @param {RequestInit} init */
async function request(path, init) {
  const response = await (early(BASE + path) ?? fetch(BASE + path, { credentials: 'same-origin', ...init })).catch(() => {
    throw new Problem({ code: 'offline', title: 'The server does not answer', detail: 'The server does not answer.' });
  });
  // The date has no parts of a second.
  const off = Date.parse(response.headers.get('date') ?? '') - Date.now();
  ahead = Math.abs(off) > 2000 ? off : 0;
  if (!response.ok) throw await problem(response);
  signedOut.value = false;
  return response;
}

/** @param {Response} response */
const json = async (response) => readJson(await response.text());

/**
 * Reads one resource.
 * @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [abort] @returns {Promise<any>}
 */
export async function get(path, query = {}, abort) {
  if (file) return file.get(path, query);
  return json(await request(path + search(query), { signal: abort, headers: { accept: 'application/json' } }));
}

/** Changes something. @param {string} path @param {unknown} body @returns {Promise<any>} */
export async function post(path, body) {
  if (file) throw new Problem({ title: 'This is a file', detail: 'This is a file: it shows a session and cannot change it.' });
  const response = await request(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json' },
    body: JSON.stringify(body),
  });
  return response.status === 204 ? {} : json(response);
}

/** Events as JSON lines. @param {string} id @param {Loose} [query] @param {AbortSignal} [signal] */
const lines = (id, query, signal) => request(`/sessions/${encodeURIComponent(id)}/events${search({ follow: 0, ...query })}`, { signal, headers: { accept: 'application/x-ndjson' } });

/**
 * A page of a session's events.
 * @param {string} id @param {Record<string, any>} query @param {AbortSignal} [abort] @returns {Promise<any[]>}
 */
export async function events(id, query, abort) {
  if (file) return file.events(query);
  const text = await (await lines(id, query, abort)).text();
  return text.split('\n').filter(Boolean).map(readJson);
}

/** Everything that a session's log has, as JSON lines. @param {string} id */
export async function wholeLog(id) {
  if (file) return new Blob(file.events({}).map((event) => `${JSON.stringify(event)}\n`));
  return (await lines(id)).blob();
}

/**
 * Posts with a key, so that what is sent again, because no answer came, counts once. Another body is another request, and so
 * is one that the process of the session has refused: the same key would give the same refusal for ever.
 */
export function poster() {
  let sent = '';
  let key = '';
  return async (/** @type {string} */ path, /** @type {Loose} */ body) => {
    const text = JSON.stringify([path, body]);
    if (sent !== text) {
      sent = text;
      key = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    }
    try {
      return await post(path, { ...body, key });
    } catch (error) {
      if (error.code === 'commandRefused') sent = '';
      throw error;
    }
  };
}

/**
 * Exchanges the token of the address for a cookie, and takes it out of the address.
 * The server prints an address that ends with `#token=…`; after the token `&to=` may name a view.
 * @returns whether the address had a token
 */
export async function signIn() {
  const found = /^#token=([^&]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!found || file) return false;
  history.replaceState(null, '', `${location.pathname}#${found[2] ?? '/'}`);
  readAddress();
  await post('/login', { token: found[1] });
  return true;
}
