# A small MCP server over stdio for tests: a process of its own, with tools that work, fail, hang, die and lie.
# `HERD_MODE` makes the whole server misbehave; `count` and `hang` leave their traces in the folder it works in.
say() { printf '%s\n' "$1"; }
answer() { say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$1}"; }
text() { answer "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}]${2:+,$2}}"; }
tool() { printf '{"name":"%s","description":"%s","inputSchema":{"type":"object"%s}}' "$1" "$2" "$3"; }

echo $$ >> herd.pids
case "$HERD_MODE" in
  silent) exec sleep 600 ;;
  gone) echo "no gate for $HERD_TOKEN" >&2; exit 3 ;;
  noisy) say 'Welcome to the herd!'; say '{"half":' ;;
  flood) while say 'moo'; do :; done ;;
  deaf) trap '' TERM ;;
  old) say '{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"too old for '"$HERD_TOKEN"'"}}' ;;
esac

while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/^.*"id":\([0-9][0-9]*\).*$/\1/p')
  words=$(printf '%s' "$line" | sed -n 's/^.*"text":"\([^"]*\)".*$/\1/p')
  case "$line" in
    *'"method":"initialize"'*)
      answer '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"herd","version":"1"}}' ;;
    *'"method":"notifications/cancelled"'*) echo cancelled >> herd.log ;;
    *'"method":"notifications/'*) ;;
    *'"method":"tools/list"'*)
      case "$line" in
        *'"cursor":"more"'*) answer "{\"tools\":[$(tool say 'Says a text.' ',"properties":{"text":{"type":"string"}}')]}" ;;
        *)
          list=$(for name in count die error fail hang huge lie picture secret slow strange.name; do
            printf '%s,' "$(tool $name "The tool $name.")"
          done)
          answer "{\"tools\":[${list%,}],\"nextCursor\":\"more\"}" ;;
      esac ;;
    *'"method":"tools/call"'*)
      case "$line" in
        *'"name":"count"'*) echo count >> herd.log; n=$(grep -c count herd.log); text "$n oxen" "\"structuredContent\":{\"oxen\":$n}" ;;
        *'"name":"die"'*) echo "struck by lightning, $HERD_TOKEN" >&2; exit 3 ;;
        *'"name":"error"'*) say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32602,\"message\":\"no such ox\"}}" ;;
        *'"name":"fail"'*) text 'the ox ran away' '"isError":true' ;;
        *'"name":"hang"'*) echo hang >> herd.log; sleep 600 & echo $! >> herd.pids ;;
        *'"name":"huge"'*) text "$(head -c 300000 /dev/zero | tr '\0' o)" ;;
        *'"name":"lie"'*) say 'not a message'; answer '{"content":"moo"}' ;;
        *'"name":"picture"'*) answer '{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}]}' ;;
        *'"name":"say"'*) text "$words" ;;
        *'"name":"secret"'*) text "token $HERD_TOKEN, key ${ANTHROPIC_API_KEY:-none}" ;;
        *'"name":"slow"'*) sleep 0.3; text 'at last' ;;
        *'"name":"strange.name"'*) text 'strange' ;;
        *) say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32602,\"message\":\"unknown tool\"}}" ;;
      esac ;;
    *'"method":"ping"'*) answer '{}' ;;
  esac
done
[ "$HERD_MODE" = deaf ] && exec sleep 600
exit 0
