"""lm-evaluation-harness, by `local-completions`, against a running `cake-master serve` of the demo model. Its tasks are beside
this file, in `lm_eval/`; the harness asks the server for tokens of texts, too.

    python lm_eval_client.py http://127.0.0.1:8080 MODEL
"""

import os
import tempfile

# Its library of data sets may not ask elsewhere, and what it makes is not kept.
HOME = tempfile.TemporaryDirectory()
os.environ |= {"HF_HOME": HOME.name, "HF_HUB_OFFLINE": "1"}

import lm_eval
from checks import check, run
from lm_eval.tasks import TaskManager

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm_eval")


def evaluated(url, model, task):
    os.chdir(HERE)  # From here the tasks name their data.
    asked = dict(model=model, base_url=f"{url}/v1/completions", tokenizer_backend="remote", max_length=1024)
    tasks = TaskManager(include_path=HERE, include_defaults=False)
    found = lm_eval.simple_evaluate("local-completions", model_args=asked, tasks=[task], task_manager=tasks)
    assert len(found["samples"][task]) == 3, found
    return found["results"][task], found["samples"][task]


@check
def generate_until(url, model):
    result, samples = evaluated(url, model, "capitals_written")
    assert result["exact_match,none"] == 1, samples


@check
def loglikelihood(url, model):
    result, samples = evaluated(url, model, "capitals_chosen")
    assert result["acc,none"] == 1, samples
    # What the model would write is what it takes for likely.
    for sample in samples:
        logprob, is_greedy = sample["filtered_resps"][sample["target"]]
        assert is_greedy and -1 < logprob < 0, sample


run(lambda url: url, "lm-eval")
