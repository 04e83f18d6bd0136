// The page: its frame, and which view an address shows.

import { effect, html, render, useEffect } from './dom.js';
import { Compare } from './compare.js';
import { Flow, Flows } from './flows.js';
import { Help, listenToKeys } from './keys.js';
import { Inbox } from './inbox.js';
import { inbox, listError, loadLists, meta, now, title } from './lists.js';
import { asks } from './node.js';
import { Asker, Button, Contained, Empty, Failure, Loading, note, notes } from './parts.js';
import { go, href, route } from './route.js';
import { Run } from './run.js';
import { closeSession, sessionOf } from './session.js';
import { Sessions } from './sessions.js';
import { connect, connectNow, connection, staleSince } from './socket.js';
import { file, signIn, signedOut } from './source.js';
import { duration, plural } from './format.js';

const THEMES = ['system', 'light', 'dark'];

/** The colours that the viewer chose, where the browser stores anything. */
function theme() {
  try {
    return localStorage.getItem('theme') ?? 'system';
  } catch {
    return 'system';
  }
}

/** @param {string} name */
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem('theme', name);
  } catch {
    // A file opened without storage forgets it.
  }
}

/** Changes between the colours of the system, light and dark. */
export function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
}

const Mark = () => html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
  <path d="M4 11h24" /><path class="bow" d="M7 11v6a4.5 4.5 0 0 0 9 0v-6M16 11v6a4.5 4.5 0 0 0 9 0v-6" />
</svg>`;

/** Where the page begins: at the sessions, or at that of the file. */
const home = file ? href(['s', file.session, 'graph']) : href([]);

function Head() {
  const waiting = inbox.value.length;
  const [first] = route.value.path;
  const link = (/** @type {string} */ name, /** @type {string[]} */ path, /** @type {string[]} */ names, /** @type {any} */ extra) => html`
    <a href=${href(path)} aria-current=${names.includes(first ?? '') ? 'page' : undefined}>${name}${extra}</a>`;
  return html`<header class="head">
    <a class="brand" href=${home} aria-label=${file ? 'Inspan, the session' : 'Inspan, all sessions'}><${Mark} /><span>inspan</span></a>
    ${!file && html`<nav aria-label="Pages">
      ${link('Sessions', [], ['', 's', 'compare'], null)}
      ${link('Inbox', ['inbox'], ['inbox'], waiting > 0 && html` <span class="badge">${waiting}</span>`)}
      ${link('Flows', ['flows'], ['flows'], null)}
    </nav>`}
    <span class="grow"></span>
    <${Connection} />
    <button type="button" class="icon" onClick=${nextTheme} title="Colours: system, light, dark" aria-label="Change colours">◐</button>
    <button type="button" class="icon" onClick=${() => document.dispatchEvent(new CustomEvent('help'))} title="Keys (?)" aria-label="Keys">?</button>
  </header>`;
}

function Connection() {
  if (signedOut.value) return html`<span class="conn stale" role="status">not signed in</span>`;
  switch (connection.value) {
    case 'live':
      return html`<span class="conn live" role="status"><i aria-hidden="true"></i>live</span>`;
    case 'file':
      return html`<span class="conn" role="status">a file, as exported</span>`;
    case 'stale':
      return html`<span class="conn stale" role="status">not connected</span>`;
    default:
      return html`<span class="conn" role="status">connecting…</span>`;
  }
}

/** Says that what is shown may be old. */
function Stale() {
  if (connection.value !== 'stale' || signedOut.value) return null;
  const since = Math.max(0, now.value - staleSince.value);
  return html`<div class="bar stale-bar" role="alert">
    <strong>Stale.</strong> The server has not answered for ${duration(Math.max(1000, since))}; what is shown may be old. It is tried again by itself.
    <${Button} onPress=${connectNow}>Try now<//>
  </div>`;
}

/** What waits for a person: the loudest thing on every page. */
function Call() {
  const { path: [first, second, view = 'graph'], query: { node, at } } = route.value;
  if (first === 'inbox') return null;
  /** @param {Loose} question */
  const isShown = (question) => first === 's' && question.sessionId === second && !at && (node ? asks(question, node) : view === 'graph');
  const elsewhere = inbox.value.filter((question) => !isShown(question));
  if (!elsewhere.length) return null;
  const next = elsewhere[0];
  return html`<aside aria-label="Questions"><a class="bar call" href=${elsewhere.length === 1 ? href(['s', next.sessionId, 'graph'], { node: next.task }) : href(['inbox'])}>
    <span class="call-glyph" aria-hidden="true">?</span>
    <strong>${plural(elsewhere.length, 'question waits', 'questions wait')} for you</strong>
    <span class="call-text">${next.flow}: ${next.prompt}</span>
    <span class="call-go">Answer <span aria-hidden="true">→</span></span>
  </a></aside>`;
}

function Notes() {
  return html`<div class="notes" role="status" aria-live="polite">
    ${notes.value.map((one) => html`<p key=${one.id} class=${`note tone-${one.tone}`}>${one.text}</p>`)}
  </div>`;
}

function SignedOut() {
  return html`<${Empty} head=${true} title="This browser is not signed in">
    <p>The server's token opens the page once. Open the address that <code>inspan serve</code> printed, with
      its <code>#token=…</code>, or start <code>inspan serve</code> again.</p>
  <//>`;
}

function View() {
  const [first, second, third] = route.value.path;
  useEffect(() => {
    if (first !== 's') closeSession();
    if (!first || first === 'compare') title.value = 'Inspan';
  }, [first]);
  if (signedOut.value) return html`<${SignedOut} />`;
  if (!meta.value) return listError.value ? html`<${Failure} error=${listError.value} retry=${loadLists} head=${true} />` : html`<${Loading} what="the sessions" />`;
  const isHere = file ? first === 's' && second === file.session : first !== 's' || second;
  switch (isHere ? first : 'nothing') {
    case undefined:
      return html`<${Sessions} />`;
    case 'inbox':
      return html`<${Inbox} />`;
    case 'flows':
      return second ? html`<${Flow} key=${second} id=${second} />` : html`<${Flows} />`;
    case 's':
      return html`<${Run} key=${second} id=${second} view=${third ?? 'graph'} />`;
    case 'compare':
      return html`<${Compare} />`;
    default:
      return file
        ? html`<${Empty} head=${true} title="This file has one session"><p><a href=${home}>Show it</a></p><//>`
        : html`<${Empty} head=${true} title="There is no such view"><p><a href=${href([])}>All sessions</a></p><//>`;
  }
}

function App() {
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById('main')?.focus();
    }}>Skip to the content</a>
    <${Head} />
    <${Stale} />
    <${Call} />
    <main id="main" tabindex="-1"><${Contained} key=${route.value.path.slice(0, 2).join('/')}><${View} /><//></main>
    <${Notes} />
    <${Asker} />
    <${Help} />`;
}

async function start() {
  setTheme(theme());
  if (file && !location.hash) go(home);
  const app = /** @type {HTMLElement} */ (document.getElementById('app'));
  app.textContent = '';
  let isRefused = null;
  try {
    await signIn();
  } catch (error) {
    isRefused = error;
    note(error.message, 'bad');
  }
  if (isRefused) signedOut.value = true;
  // What takes longest is asked for first.
  else connect();
  const [first, id] = route.value.path;
  if (first === 's' && id && !isRefused) sessionOf(id);
  listenToKeys(nextTheme);
  render(html`<${App} />`, app);
  await loadLists();
}

// Lists are read again when the socket was lost: it may be another server now.
let wasLost = false;
effect(() => {
  if (connection.value === 'live' && wasLost) loadLists();
  wasLost = connection.value === 'stale';
});

// The address with the token is opened in this tab.
addEventListener('hashchange', async () => {
  try {
    if (!(await signIn())) return;
    connectNow();
  } catch (error) {
    note(error.message, 'bad');
  }
  loadLists();
});

start();
