// The keyboard: one table of keys, for what they do and for the help.

import { html, useEffect, useLayoutEffect, useRef, useState } from './dom.js';
import { asking, Key } from './parts.js';
import { go, href, route, setQuery } from './route.js';
import { choose, chosen, nodesOf, sessionOf } from './session.js';

/** Keys within a run, and the view they open. */
export const VIEWS = [
  { key: 'g', view: 'graph', name: 'Graph' },
  { key: 't', view: 'timeline', name: 'Timeline' },
  { key: 'l', view: 'log', name: 'Log' },
  { key: 'c', view: 'cost', name: 'Cost' },
  { key: 'w', view: 'why', name: 'Why' },
];

const HELP = [
  ['Everywhere', [
    ['s', 'sessions'],
    ['i', 'inbox: what waits for you'],
    ['f', 'flows'],
    ['/', 'filter'],
    ['d', 'colours: system, light, dark'],
    ['?', 'these keys'],
    ['Esc', 'close, or leave the past'],
  ]],
  ['In a run', [
    ['j k', 'next and previous node'],
    ...VIEWS.map(({ key, name }) => [key, name.toLowerCase()]),
    ['a', 'answer the question'],
    ['[ ]', 'one event back and on'],
    ['{ }', 'a twentieth back and on'],
    ['Space', 'play and pause the replay'],
  ]],
];

/** Moves through the nodes. @param {number} by */
function step(by) {
  const session = sessionOf(route.value.path[1]);
  const nodes = nodesOf(session.graph.value);
  if (!nodes.length) return;
  const at = nodes.findIndex((node) => node.path === chosen.value);
  choose(nodes[at < 0 ? (by > 0 ? 0 : nodes.length - 1) : Math.min(nodes.length - 1, Math.max(0, at + by))].path);
}

/** Moves through the past. @param {number} by */
function scrub(by) {
  const session = sessionOf(route.value.path[1]);
  const last = session.lastSeq.value;
  const next = (session.at.value ?? last) + by;
  setQuery({ at: next >= last ? undefined : Math.max(1, next) });
}

/** Takes the focus to the first question: to its field, and never to a button, which the next key could press. */
function answer() {
  const question = document.querySelector('.question');
  /** @type {HTMLElement | null} */ (question?.querySelector('textarea, input, select') ?? question)?.focus();
}

/** @param {string} key */
function inRun(key) {
  const id = route.value.path[1];
  const view = VIEWS.find((one) => one.key === key);
  if (view) go(href(['s', id, view.view], route.value.query));
  else if (key === 'j' || key === 'k') step(key === 'j' ? 1 : -1);
  else if (key === '[' || key === ']') scrub(key === ']' ? 1 : -1);
  else if (key === '{' || key === '}') scrub(Math.ceil(sessionOf(id).lastSeq.value / 20) * (key === '}' ? 1 : -1));
  else if (key === 'a') answer();
  else if (key === ' ') document.dispatchEvent(new CustomEvent('replay'));
  else if (key === 'Escape' && route.value.query.at) setQuery({ at: undefined });
  else return false;
  return true;
}

const FIELD = 'input:not([type=range]):not([type=checkbox]), textarea, select';

/** @param {() => void} nextTheme */
export function listenToKeys(nextTheme) {
  /** The field that is written into. @type {Element | null} */
  let field = null;
  addEventListener('focusin', ({ target }) => {
    field = /** @type {Element} */ (target).matches(FIELD) ? /** @type {Element} */ (target) : null;
  });
  for (const leaves of ['pointerdown', 'hashchange']) {
    addEventListener(leaves, () => {
      field = null;
    });
  }
  addEventListener('keydown', (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    // A field that is sent by a key goes as it should.
    const sends = event.key === 'Enter' && (event.ctrlKey || event.metaKey || target.matches('input'));
    if (sends || event.key === 'Escape') field = null;
    if (event.ctrlKey || event.metaKey || event.altKey || asking.value || target.closest('dialog')) return;
    if (target.matches(FIELD)) {
      if (event.key === 'Escape') target.blur();
      return;
    }
    // The field is gone, with its question for example, and who writes into it may not have seen that.
    if (field && !field.isConnected) return;
    if (event.key === ' ' && target.matches('button, a, input, summary, [role=button]')) return;
    if (event.key === '/') {
      const filter = /** @type {HTMLElement | null} */ (document.querySelector('[data-filter]'));
      filter?.focus();
      if (filter) event.preventDefault();
    } else if (event.key === '?') document.dispatchEvent(new CustomEvent('help'));
    else if (event.key === 'd') nextTheme();
    else if (event.key === 's') go(href([]));
    else if (event.key === 'i') go(href(['inbox']));
    else if (event.key === 'f') go(href(['flows']));
    else if (route.value.path[0] === 's' && route.value.path[1] && inRun(event.key)) event.preventDefault();
  });
}

/** The keys, on demand. */
export function Help() {
  const ref = useRef((null));
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const open = () => setOpen(true);
    document.addEventListener('help', open);
    return () => document.removeEventListener('help', open);
  }, []);
  useLayoutEffect(() => {
    if (isOpen && !ref.current.open) ref.current.showModal();
  }, [isOpen]);
  if (!isOpen) return null;
  return html`<dialog class="dialog help" ref=${ref} onClose=${() => setOpen(false)} aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    <div class="help-columns">
      ${HELP.map(([name, keys]) => html`<section>
        <h3>${name}</h3>
        <dl>${/** @type {string[][]} */ (keys).map(([key, does]) => html`<div><dt>${key.split(' ').map((one) => html`<${Key}>${one}<//> `)}</dt><dd>${does}</dd></div>`)}</dl>
      </section>`)}
    </div>
    <form method="dialog" class="dialog-acts"><button class="button main" autofocus>Close</button></form>
  </dialog>`;
}
