#!/bin/sh
# In place of Claude Code, with conversations that outlive it: it does each step of its work once, and continues where it
# stopped. It acts at once: what it does may not wait for us to write down who it is. A conversation is a file under
# `talks`; each step leaves one line in `effects`, which is at once the effect and the memory of it, so that no crash of
# the program itself can double one.
for word in "$@"; do
  case $word in
    --session-id=*) id=${word#*=}; talk=talks/$id; new=yes ;;
    --resume=*) id=${word#*=}; talk=talks/$id; new= ;;
  esac
done
say() { printf '%s\n' "$1"; }
if [ -z "$new" ] && [ ! -e "$talk" ]; then
  say '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,"errors":["No conversation found with session ID: '"$id"'"]}'
  exit 1
fi
read -r line
say '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
while read -r line; do
  key=${line#*key=}
  if [ "$key" != "$line" ]; then printf '%s\n' "${key%%;*}" > "$talk.new"; mv "$talk.new" "$talk"; fi
  read -r key < "$talk"
  say '{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1"}}}'
  for step in 1 2; do
    say '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"step '$step' of '$key'. "}}}'
    grep -q "^agent $key $step $id$" effects || printf 'agent %s %s %s\n' "$key" "$step" "$id" >> effects
    sleep 0.02
  done
  say '{"type":"result","subtype":"success","is_error":false,"result":"'"$key"' is done","stop_reason":"end_turn","num_turns":1,"total_cost_usd":0.01,"usage":{"input_tokens":1,"output_tokens":1}}'
done
