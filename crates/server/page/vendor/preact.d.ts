// What the page uses of `preact.js`, in types.

export function h(type: unknown, props: object | null, ...children: unknown[]): object;
export function render(what: unknown, into: Element): void;
export const Fragment: unknown;
