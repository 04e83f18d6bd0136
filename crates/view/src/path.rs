//! Parts of the paths of nodes, as texts.

use inspan_protocol::NodePath;

/// What the paths of a node's frame begin with: `each[3]/` of `each[3]/fix`, and nothing for a node of the flow.
pub(crate) fn around(path: &NodePath) -> &str {
    path.as_str().rfind('/').map_or("", |end| &path.as_str()[..=end])
}

/// The node that runs the frame in which a node is.
pub(crate) fn owner(path: &NodePath) -> Option<NodePath> {
    let frame = around(path).strip_suffix('/')?;
    let node =
        frame.strip_suffix(']').and_then(|frame| frame.rsplit_once('[')).map_or(frame, |(node, _)| node);
    Some(NodePath::new(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label;

    #[test]
    fn a_path_has_a_frame_around_it_and_a_node_that_runs_the_frame() {
        let rows = ["fix", "fix#2", "each[3]/fix#12", "each#2[3]/sub/fix"].map(NodePath::new);
        let parts = rows.each_ref().map(|path| (label(path), around(path), owner(path)));
        assert_eq!(
            parts,
            [
                ("fix", "", None),
                ("fix", "", None),
                ("each[3]/fix", "each[3]/", Some(NodePath::new("each"))),
                ("each#2[3]/sub/fix", "each#2[3]/sub/", Some(NodePath::new("each#2[3]/sub"))),
            ]
        );
    }
}
