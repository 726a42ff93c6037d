"""The dialect of Hugging Face's Text Generation Inference (TGI): its native API, and its version of OpenAI's."""
