// Names for types that many modules of the page use. `Api` is written from the OpenAPI document: `schema/api.d.ts`.

type Session = import('./js/session.js').Session;
type State = Api.PageState;
/** What the API answers without a type: list entries, questions, explanations, schemas of forms. */
type Loose = Record<string, any>;
type Query = Record<string, string | number | undefined>;
type Moment = string | number | undefined;
type Size = { w: number; h: number };
type View = { x: number; y: number; k: number };
/** A node of the drawing, as a box. */
type Box = { node: Api.DrawnNode; path: string; x: number; y: number; w: number; h: number };
/** What the nodes within frames did, by their places in the drawing. */
type Sums = Record<string, Api.DrawnResults>;
/** An edge of the drawing, as a path with its bounds. */
type Arrow = {
  edge: Api.DrawnEdge;
  place: string;
  d: string;
  left: number;
  right: number;
  top: number;
  bottom: number;
  label: { text: string; x: number; y: number } | null;
};
/** The drawing as flat lists. */
type Shapes = { boxes: Box[]; arrows: Arrow[]; w: number; h: number; counts?: Api.PageEdge[] };
/** The line of a timeline: where times are on it. */
type Line = {
  x: (at?: string | null) => number;
  place: (time: number) => number;
  cut: { from: number; to: number; kind: string }[];
  from: number;
  to: number;
  gapWidth: number;
};
/** What the server has answered, as `useResource` gives it. */
type Resource<T> = { data?: T; isLoading: boolean; error?: Error; reload: () => void };
/** What is asked before something changes. */
type Asking = {
  title: string;
  session: string;
  what: any;
  act: string;
  kind?: string;
  field?: { label: string; isNeeded?: boolean; hint?: string; value?: string };
  /** The names of numbers above 0 that are asked for. */
  numbers?: string[];
  run: (text: string, numbers: Record<string, number>) => Promise<void>;
};
