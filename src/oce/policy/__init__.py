"""The network policy language: parse, match, decide, explain. Pure; standard library only; imports nothing of ours."""
