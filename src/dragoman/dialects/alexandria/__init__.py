"""The Alexandria dialect: raw text, arrays, a WebSocket and Thrift, and generations that go on from call to call."""
