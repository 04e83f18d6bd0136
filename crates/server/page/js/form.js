// A form made of a JSON Schema: one field for each property, JSON for what has no simple field.

import { html, useState } from './dom.js';
import { own } from './format.js';

/** The type of a schema's value. @param {Loose} schema @returns {string} */
function kind(schema) {
  if (schema?.enum) return 'enum';
  const type = Array.isArray(schema?.type) ? schema.type.find((one) => one !== 'null') : schema?.type;
  if (type) return type;
  return schema?.properties ? 'object' : 'any';
}

/** The first value of a form: its defaults. @param {Loose} schema @returns {any} */
export function empty(schema) {
  if (schema?.default !== undefined) return schema.default;
  if (kind(schema) !== 'object') return undefined;
  const pairs = Object.entries(schema.properties ?? {}).map(([name, inner]) => [name, empty(inner)]);
  return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
}

let fieldId = 0;

/** `onChange` gets the new value, or what makes it of the newest: several fields may be filled in at once. @param {{ schema: Loose, value: any, onChange: (value: any) => void }} _ */
export function Form({ schema, value, onChange }) {
  if (kind(schema) !== 'object' || !schema.properties) {
    return html`<${Field} name="value" schema=${schema} value=${value} isNeeded=${true} onChange=${onChange} />`;
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
    ${names.map((name) => html`<${Field} key=${name} name=${name} schema=${schema.properties[name]} value=${own(value ?? {}, name)} isNeeded=${needed.has(name)} onChange=${(changed) => set(name, changed)} />`)}
  </div>`;
}

/** @param {{ name: string, schema: Loose, value: any, isNeeded: boolean, onChange: (value: any) => void }} _ */
function Field({ name, schema, value, isNeeded, onChange }) {
  const [id] = useState(() => `field-${(fieldId += 1)}`);
  const type = kind(schema);
  const label = html`<span>${schema?.title ?? name}${isNeeded ? html`<b class="needed" title="needed" aria-hidden="true"> *</b>` : ''}</span>`;
  const help = schema?.description && html`<small id=${`${id}-help`}>${schema.description}</small>`;
  const props = { id, name, required: isNeeded, 'aria-describedby': schema?.description ? `${id}-help` : undefined };
  /** @param {{ target: HTMLInputElement }} event */
  const onInput = (event) => onChange(event.target.value === '' && !isNeeded ? undefined : event.target.value);
  switch (type) {
    case 'boolean':
      return html`<label class="field check"><input type="checkbox" ...${props} required=${false} checked=${value === true} onChange=${(event) => onChange(event.target.checked)} />${label}${help}</label>`;
    case 'enum':
      return html`<label class="field">${label}<select ...${props} value=${JSON.stringify(value)} onChange=${(event) => onChange(event.target.value === '' ? undefined : JSON.parse(event.target.value))}>
        ${(value === undefined || !isNeeded) && html`<option value="">—</option>`}
        ${schema.enum.map((/** @type {Loose} */ one) => html`<option value=${JSON.stringify(one)} selected=${JSON.stringify(one) === JSON.stringify(value)}>${String(one)}</option>`)}
      </select>${help}</label>`;
    case 'integer':
    case 'number':
      return html`<${NumberField} label=${label} help=${help} props=${{ ...props, min: schema.minimum, max: schema.maximum }} isWhole=${type === 'integer'} value=${value} onChange=${onChange} />`;
    case 'string': {
      const isLong = (value ?? '').length > 60 || String(value ?? '').includes('\n') || (schema.maxLength ?? 0) > 200;
      return html`<label class="field">${label}${isLong
        ? html`<textarea rows="4" ...${props} value=${value ?? ''} onInput=${onInput}></textarea>`
        : html`<input type="text" ...${props} minlength=${schema.minLength} maxlength=${schema.maxLength} pattern=${schema.pattern} value=${value ?? ''} onInput=${onInput} />`}${help}</label>`;
    }
    default:
      return html`<${JsonField} label=${label} help=${help} props=${props} value=${value} onChange=${onChange} />`;
  }
}

/**
 * A number. What is written stays as it is: `0.` and `1e` are on the way to a number, and would be lost if the number were
 * written back.
 * @param {{ label: any, help: any, props: object, isWhole: boolean, value: unknown, onChange: (value: any) => void }} _
 */
function NumberField({ label, help, props, isWhole, value, onChange }) {
  const [draft, setDraft] = useState(String(value ?? ''));
  /** @param {{ target: HTMLInputElement }} event */
  const change = ({ target }) => {
    const number = target.valueAsNumber;
    setDraft(target.value);
    target.setCustomValidity(isWhole && Math.abs(number) > Number.MAX_SAFE_INTEGER ? 'This number is too large to be kept exactly.' : '');
    onChange(Number.isNaN(number) ? undefined : number);
  };
  return html`<label class="field">${label}<input type="number" ...${props} step=${isWhole ? 1 : 'any'} value=${draft} onInput=${change} />${help}</label>`;
}

/** A value written as JSON; text that is no JSON is a text where any value is allowed. @param {{ label: any, help: any, props: object, value: unknown, onChange: (value: any) => void }} _ */
function JsonField({ label, help, props, value, onChange }) {
  const [draft, setDraft] = useState(value === undefined ? '' : JSON.stringify(value, null, 2));
  const [error, setError] = useState('');
  /** @param {{ target: HTMLTextAreaElement }} event */
  const change = (event) => {
    const written = event.target.value;
    setDraft(written);
    let problem = '';
    try {
      onChange(written.trim() === '' ? undefined : JSON.parse(written));
    } catch (failure) {
      problem = `Not JSON: ${failure.message}`;
    }
    setError(problem);
    event.target.setCustomValidity(problem);
  };
  return html`<label class="field">${label}<textarea class="mono" rows="3" ...${props} value=${draft} onInput=${change}></textarea>
    ${error ? html`<small class="error">${error}</small>` : html`<small>JSON</small>`}${help}</label>`;
}
