// A form made of a JSON Schema: one field for each property, JSON for what has no simple field.

import { html, useState } from './dom.js';
import { own, readJson, text } from './format.js';

/** The type of a schema's value. @param {Loose} schema @returns {string} */
function kind(schema) {
  if (schema?.enum) return 'enum';
  const type = Array.isArray(schema?.type) ? schema.type.find((one) => one !== 'null') : schema?.type;
  if (type) return type;
  return schema?.properties ? 'object' : 'any';
}

/** The first value of a form: its defaults, and no where a yes or no is needed. @param {Loose} schema @returns {any} */
export function empty(schema, isNeeded = true) {
  if (schema?.default !== undefined) return schema.default;
  if (isNeeded && kind(schema) === 'boolean') return false;
  if (!isNeeded || kind(schema) !== 'object') return undefined;
  const pairs = Object.entries(schema.properties ?? {}).map(([name, inner]) => [name, empty(inner, (schema.required ?? []).includes(name))]);
  return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
}

/** What was written and not sent, of each question and flow, while the tab lives. @type {Map<string, Map<string, any>>} */
const written = new Map();

/** @param {string} of */
export function drafts(of) {
  if (!written.has(of)) written.set(of, new Map());
  return /** @type {Map<string, any>} */ (written.get(of));
}

/** A state that is kept for the next time that it is shown. @param {Map<string, any>} kept @param {string} name @param {() => any} first */
export function useDraft(kept, name, first) {
  const [value, set] = useState(() => (kept.has(name) ? kept.get(name) : first()));
  const keep = (/** @type {any} */ changed) => set((/** @type {any} */ old) => {
    const next = typeof changed === 'function' ? changed(old) : changed;
    kept.set(name, next);
    return next;
  });
  return [value, keep];
}

let fieldId = 0;

/** `onChange` gets the new value, or what makes it of the newest: several fields may be filled in at once. @param {{ schema: Loose, kept: Map<string, any>, value: any, onChange: (value: any) => void }} _ */
export function Form({ schema, kept, value, onChange }) {
  if (kind(schema) !== 'object' || !schema.properties) {
    return html`<${Field} name="value" kept=${kept} schema=${schema} value=${value} isNeeded=${true} onChange=${onChange} />`;
  }
  const needed = new Set(schema.required ?? []);
  /** @param {string} name @param {unknown} changed */
  const set = (name, changed) => onChange((/** @type {Loose} */ before) => {
    const next = { ...(before ?? {}), [name]: changed };
    if (changed === undefined) delete next[name];
    return next;
  });
  const names = Object.keys(schema.properties);
  return html`<div class="form">
    ${names.length === 0 && html`<p class="faint">It needs no input.</p>`}
    ${names.map((name) => html`<${Field} key=${name} name=${name} kept=${kept} schema=${schema.properties[name]} value=${own(value ?? {}, name)} isNeeded=${needed.has(name)} onChange=${(changed) => set(name, changed)} />`)}
  </div>`;
}

/** @param {{ name: string, schema: Loose, kept: Map<string, any>, value: any, isNeeded: boolean, onChange: (value: any) => void }} _ */
function Field({ name, schema, kept, value, isNeeded, onChange }) {
  const [id] = useState(() => `field-${(fieldId += 1)}`);
  // Known from the start: another element would lose the focus while somebody writes.
  const [isLong] = useState(() => /\n|.{61}/.test(text(value ?? '')) || Number(text(schema?.maxLength ?? 0)) > 200);
  const type = kind(schema);
  const label = html`<span>${schema?.title ?? name}${isNeeded ? html`<b class="needed" title="needed" aria-hidden="true"> *</b>` : ''}</span>`;
  const help = schema?.description && html`<small id=${`${id}-help`}>${schema.description}</small>`;
  const props = { id, name, required: isNeeded, 'aria-describedby': schema?.description ? `${id}-help` : undefined };
  /** What is left empty has the default. @param {unknown} changed */
  const set = (changed) => onChange(changed === undefined ? schema?.default : changed);
  /** A text can be empty itself. @param {{ target: HTMLInputElement }} event */
  const onInput = ({ target }) => onChange(target.value === '' && !isNeeded && schema.default === undefined ? undefined : target.value);
  // "2" and 2 do not read the same.
  const word = (/** @type {any} */ one) => schema.enum.some((/** @type {any} */ other) => other !== one && text(other) === text(one)) ? JSON.stringify(one) : text(one);
  switch (type) {
    case 'boolean':
      return html`<label class="field check"><input type="checkbox" ...${props} required=${false} checked=${value === true} onChange=${(event) => onChange(event.target.checked)} />${label}${help}</label>`;
    case 'enum':
      return html`<label class="field">${label}<select ...${props} value=${JSON.stringify(value)} onChange=${(event) => set(event.target.value === '' ? undefined : readJson(event.target.value))}>
        ${(value === undefined || (!isNeeded && schema.default === undefined)) && html`<option value="">—</option>`}
        ${schema.enum.map((/** @type {Loose} */ one) => html`<option value=${JSON.stringify(one)}>${word(one)}</option>`)}
      </select>${help}</label>`;
    case 'string':
      return html`<label class="field">${label}${isLong
        ? html`<textarea rows="4" ...${props} value=${value ?? ''} onInput=${onInput}></textarea>`
        : html`<input type="text" ...${props} minlength=${text(schema.minLength)} value=${value ?? ''} onInput=${onInput} />`}${help}</label>`;
    default:
      return html`<${Written} kept=${kept} label=${label} help=${help} type=${type} schema=${schema} props=${props} value=${value} onChange=${set} />`;
  }
}

/**
 * A number, or a value as JSON. What is written stays as it is: `0.` and `1e` are on the way to a number, and would be lost
 * if the number were written back.
 * @param {{ kept: Map<string, any>, label: any, help: any, type: string, schema: Loose, props: Loose, value: unknown, onChange: (value: any) => void }} _
 */
function Written({ kept, label, help, type, schema, props, value, onChange }) {
  const [draft, setDraft] = useDraft(kept, `=${props.name}`, () => (value === undefined ? '' : JSON.stringify(value, null, 2)));
  const isNumber = type === 'integer' || type === 'number';
  /** @param {string} words */
  const read = (words) => {
    if (words.trim() === '') return undefined;
    return isNumber && !/^-?\d{16,}$/.test(words) ? Number(words) : readJson(words);
  };
  let error = '';
  try {
    read(draft);
  } catch (failure) {
    error = failure instanceof SyntaxError ? `Not JSON: ${failure.message}` : failure.message;
  }
  const rest = {
    ...props,
    value: draft,
    placeholder: schema?.default === undefined ? undefined : `${text(schema.default)} if left empty`,
    ref: (/** @type {HTMLInputElement | null} */ box) => box?.setCustomValidity(error),
    onInput: (/** @type {{ target: HTMLInputElement }} */ { target }) => {
      setDraft(target.value);
      try {
        onChange(read(target.value));
      } catch {
        // It is said below, and the form is not sent.
      }
    },
  };
  return html`<label class="field">${label}${isNumber
    ? html`<input type="number" min=${text(schema.minimum)} max=${text(schema.maximum)} step=${type === 'integer' ? 1 : 'any'} ...${rest} />`
    : html`<textarea class="mono" rows="3" ...${rest}></textarea>`}
    ${error ? html`<small class="error">${error}</small>` : !isNumber && html`<small>JSON</small>`}${help}</label>`;
}
