// What every view may show: the status table, the sessions and the open questions.

import { computed, effect, signal } from './dom.js';
import { plural, visible } from './format.js';
import { file, get, signedOut, time } from './source.js';
import { followLists } from './socket.js';

/** @type {{ value: { version?: string, statuses: Record<string, Status>, sessionStatuses: Record<string, Status> } | null }} */
export const meta = signal(null);
/** @typedef {{ glyph: string, tone: string, label: string }} Status */

/** @type {{ value: any[] | null }} */
export const sessions = signal(null);
/** Whether there are older sessions that are not read. */
export const hasOlder = signal(false);
/** @type {{ value: any[] }} */
export const inbox = signal([]);
/** @type {{ value: Error | null }} */
export const listError = signal(null);

/** The server's clock for what passes while nothing happens; it ticks each second while the page is seen. */
export const now = signal(time());
setInterval(() => {
  if (!document.hidden) now.value = time();
}, 1000);

const UNKNOWN = { glyph: '·', tone: 'faint', label: '' };

/** How a node's status is shown. @param {string} word @returns {Status} */
export const nodeStatus = (word) => meta.value?.statuses?.[word] ?? { ...UNKNOWN, label: word };
/** How a session's state is shown. @param {string} word @returns {Status} */
export const sessionStatus = (word) => meta.value?.sessionStatuses?.[word] ?? { ...UNKNOWN, label: word };

/** How many pages of sessions are read. */
let pages = 1;

/** The newest sessions, and all others that have not ended: the questions of old ones wait too. */
async function readSessions() {
  const limit = 1000;
  /** @type {any[]} */
  const all = [];
  let cursor;
  for (let page = 0; page < pages && (page === 0 || cursor); page += 1) {
    const { sessions: more, next } = await get('/sessions', { limit, cursor });
    all.push(...more);
    cursor = next;
  }
  hasOlder.value = !!cursor;
  if (!cursor) return all;
  const known = new Set(all.map((one) => one.sessionId));
  const { sessions: open } = await get('/sessions', { limit, state: 'open' });
  return [...all, ...open.filter((/** @type {Loose} */ one) => !known.has(one.sessionId))];
}

/** Reads one more page of sessions. */
export function loadOlder() {
  pages += 1;
  return loadLists();
}

/** Reads the lists; from then on the socket keeps them fresh. */
export async function loadLists() {
  try {
    const about = async () => {
      meta.value ??= await get('/meta');
    };
    if (file) return await about();
    const [all, open] = await Promise.all([readSessions(), get('/inbox'), about()]);
    now.value = time();
    sessions.value = all;
    inbox.value = open;
    listError.value = null;
  } catch (error) {
    listError.value = error;
  }
}

/** The newest sessions of a message, beside all that have not ended. */
const NEWEST = 100;
/** Whether a session in this state has ended. @param {string} word */
export const hasEnded = (word) => !['running', 'waiting', 'paused', 'interrupted'].includes(word);

/** Whether a process runs a session. @param {Loose} entry */
export const runs = ({ state, owner }) => state === 'running' || (state === 'waiting' && !!owner && owner.is !== 'gone');

/** How long a session took, or takes. @param {Loose} entry */
export const took = (entry) => (runs(entry) && entry.startedAt ? Math.max(0, now.value - new Date(entry.startedAt).getTime()) : entry.durationMs);

/** What a session waits for, in words. @param {Loose} entry */
export const waitsFor = (entry) => (entry.questions > 0 ? plural(entry.questions, 'question') : entry.waitsFor);

/** Whether the time of a question is up, by the clock of this browser. @param {Loose} question */
export const isLate = ({ deadline }) => !!deadline && new Date(deadline).getTime() <= now.value;

followLists((message) => {
  const last = message.sessions[NEWEST - 1]?.createdAt;
  const named = new Set(message.sessions.map((/** @type {Loose} */ one) => one.sessionId));
  const older = last ? (sessions.value ?? []).filter((one) => one.createdAt <= last && !named.has(one.sessionId)) : [];
  sessions.value = [...message.sessions, ...older];
  // The message does not say how those have ended.
  if (older.some((one) => !hasEnded(one.state))) loadLists();
  inbox.value = message.inbox ?? [];
  listError.value = null;
});

/** Those that wait for a person first, then those that run, then the newest. */
export const sortedSessions = computed(() => {
  /** @param {Loose} entry */
  const rank = (entry) => {
    if (entry.questions > 0) return 0;
    return ['running', 'paused', 'waiting'].includes(entry.state) ? 1 : 2;
  };
  const all = [...(sessions.value ?? [])];
  return all.sort((a, b) => rank(a) - rank(b) || String(b.createdAt ?? '').localeCompare(String(a.createdAt ?? '')));
});

// Nobody is told of questions that may be answered long ago.
effect(() => {
  if (signedOut.value) inbox.value = [];
});

/** What the tab's title says besides how many questions wait. */
export const title = signal('Inspan');
effect(() => {
  const waiting = inbox.value.length;
  document.title = visible(`${waiting ? `(${waiting}) ` : ''}${title.value}`);
});
