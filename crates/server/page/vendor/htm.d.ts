// What the page uses of `htm.js`, in types. Handlers and components take anything: their attributes are not typed.

type Value = ((...values: any[]) => any) | object | string | number | boolean | null | undefined;
type Html = (strings: TemplateStringsArray, ...values: Value[]) => any;

declare const htm: { bind(h: (type: unknown, props: object | null, ...children: unknown[]) => object): Html };
export default htm;
