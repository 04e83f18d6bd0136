// Small pieces that several views use.

import { cls, computed, effect, html, signal, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from './dom.js';
import { nodeStatus, sessionStatus } from './lists.js';
import { Problem, file } from './source.js';
import { count } from './format.js';
import { route } from './route.js';

/** A status: sign, colour and word. @param {{ of: import("./lists.js").Status, bare: boolean }} _ */
function Sign({ of, bare }) {
  return html`<span class=${cls('sign', `tone-${of.tone}`)} title=${bare ? of.label : undefined}>
    <span class="glyph" aria-hidden="true">${of.glyph}</span>
    ${bare ? html`<span class="sr">${of.label}</span>` : html`<span class="word">${of.label}</span>`}
  </span>`;
}

/** @param {{ status: string, bare: boolean }} _ */
export const NodeSign = ({ status, bare }) => html`<${Sign} of=${nodeStatus(status)} bare=${bare} />`;
/** @param {{ state: string, bare: boolean }} _ */
export const SessionSign = ({ state, bare }) => html`<${Sign} of=${sessionStatus(state)} bare=${bare} />`;

/** Something to press. @param {Loose} _ */
export function Button({ children, kind, onPress, ...rest }) {
  return html`<button type="button" class=${cls('button', kind)} onClick=${onPress} ...${rest}>${children}</button>`;
}

/** A key of the keyboard. @param {Loose} _ */
export const Key = ({ children }) => html`<kbd>${children}</kbd>`;

/** While something is read. @param {{ what: string }} _ */
export const Loading = ({ what }) => html`<div class="blank" role="status">
  <span class="furrow" aria-hidden="true"><i></i><i></i><i></i></span>
  <p>Reading ${what}…</p>
</div>`;

/** Says where a file has less than a server: some views only as they were at the end. @param {{ session: Session, what?: string }} _ */
export const AtEnd = ({ session, what = 'this' }) => file && session.at.value ? html`<p class="hint">The file has ${what} only as it was at the end.</p>` : null;

/** Where there is nothing. @param {Loose} _ */
export const Empty = ({ title, children, head }) => html`<div class="blank"><${head ? 'h1' : 'p'} class="blank-title">${title}<//>${children}</div>`;

/** What went wrong, and what can be done; the head of the page where there is nothing else. @param {{ error: Error, retry?: () => void, head?: boolean }} _ */
export function Failure({ error, retry, head }) {
  const isProblem = error instanceof Problem;
  return html`<div class="blank failure" role="alert">
    <${head ? 'h1' : 'p'} class="blank-title">${isProblem && error.title ? error.title : 'This could not be shown'}<//>
    <p>${error.message}</p>
    ${isProblem && error.hint && html`<p class="hint">${error.hint}</p>`}
    ${isProblem && error.code && html`<p class="mono faint">${error.code}</p>`}
    ${retry && !file && html`<${Button} onPress=${retry}>Try again<//>`}
  </div>`;
}

/** Shows what went wrong within it in its place, so that the rest of the page stays. @param {{ children?: any }} _ */
export function Contained({ children }) {
  const [error, retry] = useErrorBoundary((failure) => reportError(failure));
  return error ? html`<${Failure} error=${error} retry=${retry} />` : children;
}

/** Long text, cut until it is asked for. @param {{ value: string, label: string, lines?: number }} _ */
export function Folded({ value, label, lines = 12 }) {
  const [isOpen, setOpen] = useState(false);
  const all = value.split('\n');
  const isLong = all.length > lines + 2 || value.length > 4000;
  const shown = isLong && !isOpen ? all.slice(0, lines).join('\n').slice(0, 4000) : value;
  return html`<div class="folded">
    <pre class="code" tabindex="0" aria-label=${label}>${shown}</pre>
    ${isLong && html`<button type="button" class="link" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? 'Show less' : `Show all ${all.length > 1 ? `${all.length} lines` : `${count(value.length)} characters`}`}
    </button>`}
  </div>`;
}

/** Lines of which some were added or removed, after a head of so many. @param {{ text: string, head?: number }} _ */
export const DiffLines = ({ text: lines, head = 0 }) => lines.replace(/\n$/, '').split('\n').map((line, at) =>
  html`<span class=${cls('diff-line', at >= head && { '+': 'added', '-': 'removed' }[line[0]])}>${line}${'\n'}</span>`);

/** The changes of a file. @param {{ diff: Api.FileEdit }} _ */
export function Diff({ diff }) {
  return html`<div class="diff">
    <p class="diff-path mono">${diff.path}</p>
    ${diff.hunks.map((hunk) => html`<pre class="code" tabindex="0" aria-label=${`Changes at line ${hunk.line}`}>
      <span class="diff-line faint">@@ line ${hunk.line}${'\n'}</span>
      <${DiffLines} text=${hunk.text} />
    </pre>`)}
  </div>`;
}

/** @type {{ value: { id: number, text: string, tone: string }[] }} */
export const notes = signal([]);
let noteId = 0;

/** Says something at the edge of the page, for a while. @param {string} what */
export function note(what, tone = 'good') {
  const id = (noteId += 1);
  notes.value = [...notes.value.slice(-3), { id, text: what, tone }];
  setTimeout(() => {
    notes.value = notes.value.filter((one) => one.id !== id);
  }, tone === 'bad' ? 12_000 : 5000);
}

/** @type {{ value: any }} title, what, act, kind, field and run of what is asked */
export const asking = signal(null);

/** Asks once before something changes, and says what will happen. @param {Asking} question */
export const ask = (question) => {
  asking.value = question;
};
const shownPath = computed(() => route.value.path.join('/'));
// What is asked in one view is not answered in another one.
effect(() => {
  if (shownPath.value !== undefined) asking.value = null;
});

/** The dialog of `ask`. */
export const Asker = () => asking.value && html`<${Dialog} key=${asking.value} question=${asking.value} />`;

/** @param {{ question: Asking }} _ */
function Dialog({ question }) {
  const ref = useRef((null));
  const [state, setState] = useState({ text: question.field?.value ?? '', busy: false, error: '' });
  const [numbers] = useState(/** @returns {Record<string, number>} */ () => ({}));
  useLayoutEffect(() => ref.current.showModal(), []);
  // The browser then gives the focus back. Another question may have its own dialog by now.
  const close = () => ref.current?.close();
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    if (question.field?.isNeeded && !state.text.trim()) return setState({ ...state, error: 'Write something first.' });
    setState({ ...state, busy: true, error: '' });
    try {
      await question.run(state.text, numbers);
      close();
    } catch (error) {
      const { message, hint } = (error);
      const what = [message, hint].filter(Boolean).join(' ');
      if (asking.value === question) setState({ ...state, busy: false, error: what });
      else note(what, 'bad');
    }
    return undefined;
  };
  return html`<dialog class="dialog" ref=${ref} onClose=${() => {
    if (asking.value === question) asking.value = null;
  }} aria-labelledby="ask-title">
    <form onSubmit=${submit}>
      <h2 id="ask-title">${question.title}</h2>
      <p class="mono faint">${question.session}</p>
      <div class="dialog-what">${question.what}</div>
      ${question.field && html`<label class="field"><span>${question.field.label}</span>
        <textarea rows="3" value=${state.text} autofocus
          onInput=${(event) => setState({ ...state, text: event.target.value })}
          onKeyDown=${(event) => event.key === 'Enter' && (event.ctrlKey || event.metaKey) && submit(event)}></textarea>
        ${question.field.hint && html`<small>${question.field.hint}</small>`}
      </label>`}
      ${question.numbers?.map((name) => html`<label class="field short" key=${name}><span>${name}</span>
        <input type="number" name=${name} min="0" step="any" required onInput=${(event) => {
          numbers[name] = event.target.valueAsNumber;
        }} /></label>`)}
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      <div class="dialog-acts">
        <${Button} onPress=${close}>Cancel<//>
        <button type="submit" class=${cls('button', question.kind ?? 'main')} disabled=${state.busy} autofocus=${!question.field && !question.numbers}>${question.act}</button>
      </div>
    </form>
  </dialog>`;
}

/** Copies text, and says so. @param {string} what @param {string} name */
export async function copy(what, name) {
  try {
    await navigator.clipboard.writeText(what);
    note(`${name} copied`);
  } catch {
    note('The browser did not allow copying', 'bad');
  }
}

/** Gives the browser a file to store. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Whether what scrolls is at its end, or almost. @param {HTMLElement} box */
export const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

/**
 * Many rows of one height, of which only those in sight exist.
 * @param {Loose} _
 */
export function Rows({ total, height, row, label, show, onRange, stick, role = 'list', ...rest }) {
  const ref = useRef((null));
  const [range, setRange] = useState({ from: 0, to: 40 });
  const bring = () => {
    const box = ref.current;
    if (show === undefined || show < 0 || !box) return;
    const top = show * height;
    if (top < box.scrollTop) box.scrollTop = Math.max(0, top - height);
    else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * height - box.clientHeight;
  };
  // Who has scrolled up reads there, until the rows are followed anew.
  const atEnd = useRef(true);
  const last = useRef(bring);
  last.current = bring;
  const place = () => {
    const box = ref.current;
    if (!box) return;
    const from = Math.max(0, Math.floor(box.scrollTop / height) - 6);
    const to = Math.ceil((box.scrollTop + box.clientHeight) / height) + 6;
    setRange((old) => (old.from === from && old.to === to ? old : { from, to }));
    onRange?.(from, Math.min(to, total));
  };
  useLayoutEffect(() => {
    const box = ref.current;
    if (stick && atEnd.current && box) box.scrollTop = box.scrollHeight;
    place();
  }, [total, stick]);
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      last.current();
      place();
    });
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(bring, [show]);
  const rows = [];
  for (let at = range.from; at < Math.min(range.to, total); at += 1) rows.push(row(at));
  return html`<div class=${cls('rows', rest.class)} ref=${ref} onScroll=${({ target }) => {
    atEnd.current = !stick || isAtEnd(target);
    place();
  }} tabindex="0" role=${role} aria-label=${label}>
    <div class="rows-all" style=${{ height: `${total * height}px` }} role="presentation">
      <div class="rows-seen" style=${{ transform: `translateY(${range.from * height}px)` }} role="presentation">${rows}</div>
    </div>
  </div>`;
}
