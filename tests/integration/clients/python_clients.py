"""Asks one model one question with LangChain and LiteLLM, and prints the answers as one JSON object.

Arguments: base URL with /v1, model, question. The key is in SPARKFLEET_API_KEY. Runs in an environment of its own.
"""

import json
import os
import sys

import litellm
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, model, question = sys.argv[1:]
key = os.environ["SPARKFLEET_API_KEY"]
chat = ChatOpenAI(model=model, base_url=url, api_key=key, temperature=0, max_tokens=60, max_retries=0)
plain = {
    "api_base": url,
    "api_key": key,
    "num_retries": 0,
    "messages": [{"role": "user", "content": question}],
}
found = {
    "langchain": chat.invoke(question).content,
    "langchain_stream": "".join(chunk.content for chunk in chat.stream(question)),
    "langchain_batch": [one.content for one in chat.batch([question] * 4)],
}


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return city


def refusal(act):
    """Status and text of the error that a call ends with."""
    try:
        act()
    except Exception as error:
        return [getattr(error, "status_code", None), str(error)]
    return None


found["langchain_tools"] = refusal(lambda: chat.bind_tools([weather]).invoke(question))
embed = OpenAIEmbeddings(
    model=model, base_url=url, api_key=key, check_embedding_ctx_length=False, max_retries=0
)
found["langchain_embeddings"] = refusal(lambda: embed.embed_query(question))
answer = litellm.completion(f"openai/{model}", temperature=0, max_tokens=60, **plain)
found["litellm"] = answer.choices[0].message.content
stream = litellm.completion(f"openai/{model}", temperature=0, max_tokens=60, stream=True, **plain)
found["litellm_stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
found["litellm_refused"] = refusal(lambda: litellm.completion("openai/nothing", **plain))
print(json.dumps(found))
