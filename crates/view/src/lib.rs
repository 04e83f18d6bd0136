//! What a session looks like: the read model of the console, the pictures, the API and the page. It is a fold of the
//! session's events, has no clock and writes nothing.

mod agent;
mod cost;
mod drawing;
pub mod entry;
pub mod format;
mod line;
pub mod look;
mod next_commands;
mod page;
mod permission;
mod report;
mod row;
pub mod safe;
mod spent;
mod state;
mod stream;
#[cfg(test)]
mod testing;
mod timeline;

pub use agent::{AgentActivity, AgentView, call};
pub use cost::{Cost, CostFold, CostForecast, ModelCost, NodeCost};
pub use drawing::{
    Drawing, DrawnFrames, DrawnNode, Edge, Fallback, Group, NodeShape, Point, Rect, Results, SessionResults,
    Size, Spending, dot, mermaid, svg, text,
};
pub use entry::DisplayStatus;
pub use line::{Colour, Line, Tone, table, tail};
pub use next_commands::{Commands, quoted};
pub use page::{
    FrameKind, FrameNodes, FramePage, FrameSelect, LIVE_TEXT, PageAgent, PageEdge, PageFold, PageFrames,
    PageNode, PagePatch, PageSession, PageState, ShownFrame, asks_itself, idle_status, question, shown,
    shown_frame,
};
pub use permission::Permission;
pub use report::{QuestionFold, Report};
pub use row::{EdgeCounts, EndedFrames, FrameRow, NodeRow, WARNING_EVENTS, inside, label, warning};
pub use spent::SpendingTotal;
pub use state::{COLUMN, Cause, Course, EarlyEnd, ExceededBudget, FinalStatus, SessionView, Touched};
pub use stream::{
    Answer, FileEdit, Hunk, ItemBody, StreamAttempt, StreamFold, StreamItem, StreamPage, StreamSelect,
    file_edits,
};
pub use timeline::{
    Bar, BarStatus, Gap, Span, Timeline, TimelineFold, TimelineRow, ToolSpan, Wait, WaitKind,
};
