// Asks a scheduler extender with the Go types and the JSON of Kubernetes, as kube-scheduler's HTTPExtender does.
//
// usage: ask_extender URLPREFIX TOKEN <cases.json
//
// A case is {"verb": "filter", "args": {...}}. Its args are decoded into Kubernetes' type, which knows every field of
// it, and encoded again by that type. So is the answer of status 200. Written is, for each case, what was sent, the
// status, the answer, and the error of decoding.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"

	v1 "k8s.io/kube-scheduler/extender/v1"
)

type question struct {
	Verb string          `json:"verb"`
	Args json.RawMessage `json:"args"`
}

type answer struct {
	Sent   interface{} `json:"sent"`
	Bytes  int         `json:"bytes"`
	Status int         `json:"status"`
	Answer interface{} `json:"answer"`
	Error  string      `json:"error"`
}

// filterResult has the field that the type of Kubernetes 1.21 and later has beyond the earlier ones.
type filterResult struct {
	v1.ExtenderFilterResult
	FailedAndUnresolvableNodes v1.FailedNodesMap
}

// types returns the types of a verb's arguments and of its result.
func types(verb string) (interface{}, interface{}) {
	switch verb {
	case "filter":
		return &v1.ExtenderArgs{}, &filterResult{}
	case "prioritize":
		return &v1.ExtenderArgs{}, &v1.HostPriorityList{}
	case "bind":
		return &v1.ExtenderBindingArgs{}, &v1.ExtenderBindingResult{}
	case "preempt":
		return &v1.ExtenderPreemptionArgs{}, &v1.ExtenderPreemptionResult{}
	}
	panic("no verb of an extender: " + verb)
}

func decode(text []byte, into interface{}) error {
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	return strict.Decode(into)
}

func ask(prefix, token string, one question) answer {
	args, result := types(one.Verb)
	if err := decode(one.Args, args); err != nil {
		panic(err)
	}
	body, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	request, err := http.NewRequest("POST", prefix+"/"+one.Verb, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{Sent: args, Bytes: len(body), Error: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK {
		err = decode(text, result)
	}
	found := answer{Sent: args, Bytes: len(body), Status: response.StatusCode, Answer: result}
	if err != nil {
		found.Error = err.Error()
	}
	return found
}

func main() {
	var questions []question
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = decode(text, &questions)
	}
	if err != nil {
		panic(err)
	}
	answers := []answer{}
	for _, one := range questions {
		answers = append(answers, ask(os.Args[1], os.Args[2], one))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}
